//! [`Action`]: one implementation per verb and subresource, each in its own file.
//!
//! | verb | resource | subresource |
//! |---|---|---|
//! | POST | `create.rs` | `binding.rs`, `evict.rs`, `token.rs` |
//! | PUT, PATCH | `update.rs` | `update.rs`; `scale.rs` for `/scale` |
//! | DELETE | `delete.rs` | – |
//!
//! `writer.rs` selects the action of a request.

use std::future::Future;
use std::pin::Pin;

use listwatch_meta::Status;

use super::pipeline::Write;
use super::request::{WriteRequest, WriteResponse};

/// The future of an action. Resolves to the response, or to the error for the client.
pub(crate) type ActionFuture<'a> = Pin<Box<dyn Future<Output = Result<WriteResponse, Status>> + Send + 'a>>;

/// Carries out one verb on a resource or a subresource.
///
/// `write` has default options. The action parses the options and the body of the request.
pub(crate) trait Action: Sync {
    /// Carries out the write that `request` describes.
    fn carry_out<'a>(&self, write: &'a Write<'a>, request: &'a WriteRequest<'a>) -> ActionFuture<'a>;
}
