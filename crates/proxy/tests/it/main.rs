//! Tests the proxy between real sockets: plain requests, TLS, upgrades, and misbehaving backends.

mod backend;
mod hostile;
mod plain;
mod tls;
mod upgrade;
