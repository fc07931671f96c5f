//! The proxy between real sockets: plain requests, TLS, upgrades, and backends that misbehave.

mod backend;
mod hostile;
mod plain;
mod tls;
mod upgrade;
