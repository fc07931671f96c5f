//! The two calls that a reflector needs: [`ListWatch`].
//!
//! Objects are passed as bytes with the positions of their metadata. An implementation may use
//! HTTP, an API server in the same process, or a test's script. Both calls return streams. A list
//! arrives item by item, because the client's memory would otherwise hold a whole list beside the
//! copy that the list replaces.

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
    /// `kind` and `apiVersion` of the list, if the server sends them before the items.
    Type(TypeName),
    /// Some items, in order.
    Objects(Vec<RawObject>),
    /// The end of the page. Always last.
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

/// The items of a list page as they arrive. Ends after [`ListItem::End`] or an error.
pub type ListStream = Pin<Box<dyn Stream<Item = Result<ListItem, Problem>> + Send>>;

/// The events of a watch in batches as they arrive. The stream ends without an error if the server
/// ended the response; a cut connection is an error.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<Vec<WatchedEvent>, Problem>> + Send>>;

/// Lists and watches one resource, in one scope, with one set of selectors. Dropping a stream
/// cancels its request.
#[async_trait]
pub trait ListWatch: Send + Sync + 'static {
    /// Requests a list page. The implementation adds its selectors to the options.
    ///
    /// # Errors
    /// The error of the server or the network, if no list begins.
    async fn list(&self, options: ListOptions) -> Result<ListStream, Problem>;

    /// Opens a watch. Returns after the server has accepted the request.
    ///
    /// # Errors
    /// The error of the server or the network, if no watch begins.
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
