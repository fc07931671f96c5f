//! Response extensions with instructions of the request chain for the connection.

/// The request had no valid credential. An HTTP/2 connection accepts no further request after the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unauthenticated;

/// An HTTP/2 connection accepts no further request after the response (`--goaway-chance`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct GoAway;

/// The request body was not read to its end. The connection ends after the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestBodyUnread;
