//! The two calls that a reflector needs: [`ListWatch`].
//!
//! Objects cross this seam as bytes with the place of their metadata, so that an implementation
//! may be HTTP, an API server in the same process, or a test's script. Both calls give streams: a
//! list arrives item by item, because a whole list beside the copy it replaces is what makes
//! clients outgrow their memory.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::Stream;
use listwatch_meta::ListOptions;
use listwatch_wire::{EventKind, ListMeta};

use crate::object::{RawObject, TypeName};
use crate::problem::Problem;

/// A part of a list page.
#[derive(Clone, Debug)]
pub enum ListItem {
    /// `kind` and `apiVersion` of the list, if they are known before the items.
    Type(TypeName),
    /// Some items, in order.
    Objects(Vec<RawObject>),
    /// The page is complete. Last.
    End(ListMeta),
}

/// One event of a watch.
#[derive(Clone, Debug)]
pub struct WatchedEvent {
    /// The kind of event.
    pub kind: EventKind,
    /// The object; for [`EventKind::Error`] a `Status`.
    pub object: RawObject,
}

/// A list page as it arrives. Ends after [`ListItem::End`] or an error.
pub type ListStream = Pin<Box<dyn Stream<Item = Result<ListItem, Problem>> + Send>>;

/// The events of a watch in batches as they arrive. The stream ends without an error if the server
/// ended the response; a cut connection is an error.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<Vec<WatchedEvent>, Problem>> + Send>>;

/// Lists and watches one resource, in one scope, with one set of selectors. Dropping a stream
/// abandons the exchange.
#[async_trait]
pub trait ListWatch: Send + Sync + 'static {
    /// Asks for a page. Selectors are the implementation's; it adds them to the options.
    ///
    /// # Errors
    /// The error of the server or the network instead of a list.
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem>;

    /// Opens a watch; the stream exists once the server has agreed.
    ///
    /// # Errors
    /// The error of the server or the network instead of a stream.
    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem>;
}

#[async_trait]
impl<L: ListWatch + ?Sized> ListWatch for Arc<L> {
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem> {
        (**self).list(options).await
    }

    async fn watch(&self, options: ListOptions) -> Result<WatchStream, Problem> {
        (**self).watch(options).await
    }
}
