//! [`CompressedBlocks`]: caches compressed blocks of lists for later lists, up to a limit in bytes.
//!
//! Clients that read the same list, or a list that differs in a few objects, receive mostly the same bytes. The key of
//! a block is the SHA-256 digest of its uncompressed bytes. The digest costs a tenth of the compression. Finding two
//! blocks with the same digest is infeasible, so no client can cause another client to receive a wrong block.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// At the limit, one of this number of new blocks may replace old blocks.
const REPLACED_ONE_OF: usize = 16;
/// Maximum number of old blocks that are examined to make room for a new block.
const EXAMINED_MAX: usize = 8;
/// Bytes of memory per cached block in addition to the block itself: the entries in the map and in the ring.
const OVERHEAD_BYTES: usize = 160;

/// The SHA-256 digest of the uncompressed bytes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockDigest([u8; 32]);

impl BlockDigest {
    pub(crate) fn of(plain: &[u8]) -> Self {
        BlockDigest(Sha256::digest(plain).into())
    }
}

/// A cache of compressed blocks of earlier responses. Cheap to clone; clones share one cache.
///
/// At the limit, most new blocks are not cached, so that a list larger than the limit does not evict its own blocks.
/// Every sixteenth new block replaces the oldest blocks, if these were not used since they were last examined.
#[derive(Clone)]
pub(crate) struct CompressedBlocks(Arc<Inner>);

struct Inner {
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: HashMap<BlockDigest, Kept>,
    /// The digests of all blocks, oldest first.
    ring: VecDeque<BlockDigest>,
    bytes: usize,
    /// The number of new blocks for which there was no room.
    refused: usize,
}

struct Kept {
    block: Bytes,
    /// Whether the block was used since it was last examined.
    used: bool,
}

impl CompressedBlocks {
    /// Creates a cache with a limit of `bytes_max` bytes; 0 disables the cache.
    pub(crate) fn new(bytes_max: usize) -> Self {
        CompressedBlocks(Arc::new(Inner { bytes_max, state: Mutex::default() }))
    }

    /// Returns the bytes of the cached blocks and their overhead.
    pub(crate) fn bytes(&self) -> usize {
        self.0.state.lock().bytes
    }

    /// Returns the cached block for the bytes with this digest.
    pub(crate) fn get(&self, digest: &BlockDigest) -> Option<Bytes> {
        let mut state = self.0.state.lock();
        let kept = state.blocks.get_mut(digest)?;
        kept.used = true;
        Some(kept.block.clone())
    }

    /// Adds a block to the cache, if there is room.
    pub(crate) fn keep(&self, digest: BlockDigest, block: &Bytes) {
        let bytes = block.len() + OVERHEAD_BYTES;
        let mut state = self.0.state.lock();
        if bytes > self.0.bytes_max || state.blocks.contains_key(&digest) {
            return;
        }
        if state.bytes + bytes > self.0.bytes_max {
            state.refused += 1;
            let examined = if state.refused.is_multiple_of(REPLACED_ONE_OF) { EXAMINED_MAX } else { 0 };
            for _ in 0..examined {
                state.examine_oldest();
                if state.bytes + bytes <= self.0.bytes_max {
                    break;
                }
            }
        }
        if state.bytes + bytes <= self.0.bytes_max {
            state.bytes += bytes;
            state.ring.push_back(digest);
            state.blocks.insert(digest, Kept { block: block.clone(), used: false });
        }
    }

    /// Drops the blocks that were not used since the last sweep.
    pub(crate) fn sweep(&self) {
        let mut state = self.0.state.lock();
        for _ in 0..state.ring.len() {
            state.examine_oldest();
        }
        state.ring.shrink_to_fit();
        state.blocks.shrink_to_fit();
    }
}

impl State {
    /// Drops the oldest block. If the block was used since it was last examined, moves the block to the end of the ring
    /// instead.
    fn examine_oldest(&mut self) {
        let Some(digest) = self.ring.pop_front() else { return };
        match self.blocks.get_mut(&digest) {
            Some(kept) if kept.used => {
                kept.used = false;
                self.ring.push_back(digest);
            }
            _ => {
                if let Some(kept) = self.blocks.remove(&digest) {
                    self.bytes -= kept.block.len() + OVERHEAD_BYTES;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(n: usize) -> BlockDigest {
        BlockDigest::of(&n.to_le_bytes())
    }

    fn block(n: usize) -> Bytes {
        Bytes::from(vec![n as u8; 1_000])
    }

    #[test]
    fn compressed_blocks_stay_within_the_limit_and_used_blocks_are_kept() {
        let blocks = CompressedBlocks::new(10 * (1_000 + OVERHEAD_BYTES));
        for n in 0..100 {
            blocks.keep(digest(n), &block(n));
            assert!(blocks.bytes() <= 10 * (1_000 + OVERHEAD_BYTES));
            if n >= 3 {
                assert_eq!(blocks.get(&digest(3)), Some(block(3)), "a used block stays");
            }
        }
        assert_eq!(blocks.get(&digest(0)), None);
        blocks.keep(digest(200), &Bytes::from(vec![0; 20_000]));
        assert_eq!(blocks.get(&digest(200)), None, "larger than the bound");
    }

    #[test]
    fn repeated_list_larger_than_the_block_cache_finds_some_of_its_blocks() {
        let blocks = CompressedBlocks::new(10 * (1_000 + OVERHEAD_BYTES));
        let list = || {
            (0..30).filter(|n| {
                blocks.get(&digest(*n)).is_some() || {
                    blocks.keep(digest(*n), &block(*n));
                    false
                }
            })
        };
        list().count();
        for _ in 0..20 {
            assert!(list().count() >= 8, "a list that does not fit does not displace itself");
        }
    }

    #[test]
    fn sweep_drops_compressed_blocks_that_were_not_used_since_the_last_sweep() {
        let blocks = CompressedBlocks::new(10_000);
        blocks.keep(digest(1), &block(1));
        blocks.keep(digest(2), &block(2));
        assert!(blocks.get(&digest(1)).is_some());
        blocks.sweep();
        assert_eq!((blocks.get(&digest(2)), blocks.get(&digest(1))), (None, Some(block(1))));
        blocks.sweep();
        blocks.sweep();
        assert_eq!(blocks.bytes(), 0);
    }
}
