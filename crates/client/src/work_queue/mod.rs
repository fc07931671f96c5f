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
//! A key stands in the queue once, however often it was added, and no two workers ever hold the
//! same key: client-go's rules. So memory is bounded by the number of distinct keys and a worker
//! that is slow sees one later state instead of a backlog of earlier ones.
//!
//! What is promised:
//! - A key that was added is handed out at least once after its last add, unless the queue was shut
//!   down before that add.
//! - No key is held by two workers at once.
//! - A delayed key is not handed out for that add before its time.
//! - No key starves: see [`QueueConfig::overdue_after`].
//! - A queue that is shut down hands out all that was ready, and what became dirty before.
//!
//! Beyond client-go: priorities with ageing, turns between namespaces, failure counts that fade
//! (in client-go they stay for ever where nobody calls `Forget`), and a [`WorkItem`] that gives its
//! key back when it is dropped, so that a panic never leaves a key held for ever.

mod core;
mod limiter;
mod metrics;
mod queue;
mod ready;
#[cfg(test)]
mod tests;

pub use self::core::{Phase, QueueConfig, Take, Taken, WorkQueueCore};
pub use self::limiter::{RetryPolicy, TokenBucket};
pub use self::metrics::{Histogram, QueueMetrics};
pub use self::queue::{WorkItem, WorkQueue};

/// The priority of what nobody gave another one. Higher ones come first.
pub const PRIORITY_NORMAL: i32 = 0;

/// The priority of what is not news: the initial state, a relist, a resync. controller-runtime's
/// value.
pub const PRIORITY_LOW: i32 = -100;
