//! Scenarios of a cache. `support/script.rs` describes their language.

#[path = "scenarios/losses.rs"]
mod losses;
#[path = "scenarios/reads.rs"]
mod reads;
mod support;
#[path = "scenarios/watches.rs"]
mod watches;

use std::sync::Arc;
use std::time::Duration;

use listwatch_cacher::{Cacher, Limits};
use listwatch_meta::ReadAt;
use listwatch_storage::Storage as _;
use support::script::{check, check_with, value};
use support::store::TestStore;
use support::{config, key, quiet, scope, settle};
