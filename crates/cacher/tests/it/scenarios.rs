//! Scenarios of a cache. `support/script.rs` describes their language.

mod losses;
mod reads;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use crate::support::script::{check, check_with, value};
use crate::support::store::TestStore;
use crate::support::{config, key, quiet, scope, settle};
use listwatch_cacher::{Cacher, Limits};
use listwatch_meta::ReadAt;
use listwatch_storage::Storage as _;
