//! A queue of keys for workers: [`WorkQueue`], and the pure [`WorkQueueCore`] inside it.
//!
//! ```text
//!                 add_after(k, d)                    overdue: oldest first, every other turn
//!                      │ the earlier time wins            │
//!                      ▼                                  ▼
//!   add(k) ─▶ ready: priority ▶ groups in turn ▶ FIFO ──get──▶ processing ──done──▶ forgotten
//!     │              ▲                                            │   ▲
//!     │ already      │                                            │   │ add(k) meanwhile: dirty,
//!     └ ready: no-op └──────────── done of a dirty key ◀──────────┘───┘ ready again at done
//! ```
//!
//! As in client-go, a key is in the queue once, however often it is added, and no two workers hold the
//! same key. Memory is therefore bounded by the number of distinct keys, and a slow worker sees the
//! latest state instead of a backlog.
//!
//! Guarantees:
//! - An added key is processed at least once after its last add, unless the queue was shut down
//!   before that add.
//! - No key is held by two workers at once.
//! - A delayed key is not processed for that add before its time.
//! - No key starves: see [`QueueConfig::overdue_after`].
//! - A queue that is shut down still hands out the keys that were ready or dirty at the shutdown.
//!
//! Differences from client-go: priorities with aging, groups that are served round-robin, and failure counts that
//! expire (client-go keeps them until `Forget` is called). A [`WorkItem`] returns its key when it is dropped, so a
//! panicking worker does not hold its key forever.
//!
//! ```
//! use listwatch_work_queue::{PRIORITY_LOW, QueueConfig, WorkQueue};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let queue = WorkQueue::new(QueueConfig::default());
//! queue.add_with_priority("default/old", PRIORITY_LOW);
//! queue.add("default/web");
//! queue.add("default/web");
//!
//! // The key was added twice, and is taken once.
//! let item = queue.get().await.expect("the queue is open");
//! assert_eq!(*item.key(), "default/web");
//! // An add during the work makes the key ready again after it.
//! queue.add("default/web");
//! item.finish();
//! let again = queue.get().await.expect("the queue is open");
//! assert_eq!(*again.key(), "default/web");
//! // A failed key returns after a delay, which grows with each failure.
//! let delay = again.retry();
//! assert!(!delay.is_zero());
//!
//! let old = queue.get().await.expect("the queue is open");
//! assert_eq!(*old.key(), "default/old");
//! # drop(old);
//! # });
//! ```
#![forbid(unsafe_code)]

mod limiter;
mod metrics;
mod queue;
mod ready;
#[cfg(test)]
mod tests;
mod work_queue_core;

pub use self::limiter::{RetryPolicy, TokenBucket};
pub use self::metrics::{Histogram, QueueMetrics};
pub use self::queue::{WorkItem, WorkQueue};
pub use self::work_queue_core::{Phase, PollTake, QueueConfig, TakenKey, WorkQueueCore};

/// The default priority. Higher priorities are served first.
pub const PRIORITY_NORMAL: i32 = 0;

/// The priority of the initial state, a relist and a resync. The value is controller-runtime's.
pub const PRIORITY_LOW: i32 = -100;
