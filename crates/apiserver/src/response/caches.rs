//! [`ResponseCaches`]: what is kept of responses for later requests.

use std::time::Duration;

use listwatch_cacher::EncodingCache;

use crate::response::compressed_blocks::CompressedBlocks;

/// The memory of all [`ResponseCaches`] of a server, in bytes, unless told otherwise (`--encoding-cache-bytes`).
pub const ENCODING_CACHE_BYTES_MAX: usize = 48 << 20;

/// The time after which an encoding is dropped that was not used meanwhile. It is dropped after twice this time at the
/// latest.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// The number of objects that are examined before other tasks run: a fraction of a millisecond.
const SWEPT_AT_ONCE: usize = 1000;

/// Encodings of objects and compressed parts of lists.
#[derive(Clone)]
pub(crate) struct ResponseCaches {
    /// Cached objects in protobuf, as rows of Tables and as metadata.
    pub(crate) encodings: EncodingCache,
    /// Compressed parts of lists.
    pub(crate) blocks: CompressedBlocks,
}

impl ResponseCaches {
    /// Creates caches of `bytes_max` bytes together: two thirds for objects, one third for compressed parts.
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
