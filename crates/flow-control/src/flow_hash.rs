//! Hashes of flows and of watches. Upstream hashes flows with SHA-256 (`hashFlowID`); the hash is not visible to
//! clients. SipHash costs a tenth. The key of the hash is secret, so that a client cannot choose a name that shares the
//! queues of another flow.

use std::hash::{DefaultHasher, Hasher};

/// A hash function with a secret key.
#[derive(Clone, Debug)]
pub(crate) struct FlowHash(DefaultHasher);

impl FlowHash {
    pub(crate) fn new(secret: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(secret);
        FlowHash(hasher)
    }

    /// Returns the hash function for the flows of one schema.
    pub(crate) fn with(&self, text: &str) -> Self {
        let mut hasher = self.0.clone();
        write(&mut hasher, text);
        FlowHash(hasher)
    }

    pub(crate) fn hash(&self, texts: &[&str]) -> u64 {
        let mut hasher = self.0.clone();
        texts.iter().for_each(|text| write(&mut hasher, text));
        hasher.finish()
    }
}

/// Hashes a string and a zero byte. No string contains a zero byte, so different lists have different bytes.
fn write(hasher: &mut DefaultHasher, text: &str) {
    hasher.write(text.as_bytes());
    hasher.write_u8(0);
}
