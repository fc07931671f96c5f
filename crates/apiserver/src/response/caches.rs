//! [`ResponseCaches`]: caches of encoded objects and of compressed list blocks.

use std::time::Duration;

use listwatch_cacher::EncodingCache;

use crate::response::compressed_blocks::CompressedBlocks;

/// The default memory limit of the [`ResponseCaches`] of a server, in bytes (`--encoding-cache-bytes`).
pub const ENCODING_CACHE_BYTES_MAX: usize = 48 << 20;

/// The interval between two sweeps. An unused encoding is dropped after one to two intervals.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// The number of objects that a sweep examines before the task yields: a fraction of a millisecond.
const SWEPT_AT_ONCE: usize = 1000;

/// The caches of encoded objects and of compressed list blocks.
#[derive(Clone)]
pub(crate) struct ResponseCaches {
    /// Objects in protobuf, as Table rows, and as metadata.
    pub(crate) encodings: EncodingCache,
    /// Compressed blocks of lists.
    pub(crate) blocks: CompressedBlocks,
}

impl ResponseCaches {
    /// Creates caches with a total limit of `bytes_max` bytes: two thirds for objects, one third for compressed blocks.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let compressed = bytes_max / 3;
        ResponseCaches {
            encodings: EncodingCache::new(bytes_max - compressed),
            blocks: CompressedBlocks::new(compressed),
        }
    }

    /// Drops unused encodings every [`SWEEP_INTERVAL`]. Never ends.
    pub(crate) async fn sweep(self) {
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            let mut left = self.encodings.objects();
            while left > 0 {
                left = left.saturating_sub(self.encodings.sweep(SWEPT_AT_ONCE).max(1));
                tokio::task::yield_now().await;
            }
            self.blocks.sweep();
        }
    }
}
