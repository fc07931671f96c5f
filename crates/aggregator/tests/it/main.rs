//! Tests the aggregator between a client and extension servers over TLS.

mod extension;
mod follow;
mod pass;
