//! Scenarios of a cache, written in the script language of `support/script.rs`.

mod losses;
mod reads;
mod watches;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::script::{check, check_with, value};
use crate::support::store::TestStore;
use crate::support::{config, drain, key, options, quiet, scope, settle};
use futures_core::Stream as _;
use listwatch_cacher::{Cacher, Delivery, Limits, ReadError, Watcher};
use listwatch_meta::{ListOptions, ReadAt, WatchFrom, WatchRequest};
use listwatch_storage::Storage as _;
