//! [`Aggregation`]: forwards requests for group versions of extension servers, and merges the discovery and OpenAPI
//! documents of all servers.
//!
//! The handler of the same name ([`crate::handlers`]) calls [`Aggregation`] for each request. Source of the rules:
//! `kube-aggregator/pkg/apiserver`.

mod documents;
mod objects;

use std::sync::Arc;

use bytes::Bytes;
use listwatch_aggregator::{Aggregator, AggregatorOptions, api_group};
use listwatch_controllers::bootstrap::RequestHeader;
use listwatch_meta::Status;
use listwatch_proxy::{Limits, Proxy};
use listwatch_write::Writer;

use self::documents::MergedDocuments;
use self::objects::StoredObjects;
use crate::documents::{Document, DocumentRequest, Documents};

/// The aggregation of one server.
pub(crate) struct Aggregation {
    aggregator: Arc<Aggregator>,
    objects: Arc<StoredObjects>,
    documents: Arc<MergedDocuments>,
    /// The headers from which extension servers read the user.
    request_header: Option<RequestHeader>,
}

impl Aggregation {
    /// Creates the aggregation of a server. `local` are the server's own documents.
    pub(crate) fn new(
        writer: &Arc<Writer>,
        local: &Arc<Documents>,
        options: AggregatorOptions,
        request_header: Option<RequestHeader>,
    ) -> Self {
        let objects = Arc::new(StoredObjects::new(Arc::clone(writer)));
        let reader: Arc<dyn listwatch_aggregator::ServiceObjects> = Arc::<StoredObjects>::clone(&objects);
        let aggregator = Arc::new(Aggregator::new(Proxy::new(Limits::default()), reader, options));
        let documents = MergedDocuments::new(Arc::clone(writer.backend()), Arc::clone(local), Arc::clone(&aggregator));
        Aggregation { aggregator, objects, documents: Arc::new(documents), request_header }
    }

    /// Whether an extension server serves any group version.
    pub(crate) fn has_remote(&self) -> bool {
        self.aggregator.has_remote()
    }

    /// The headers from which extension servers read the user.
    pub(crate) fn request_header(&self) -> Option<&RequestHeader> {
        self.request_header.as_ref()
    }

    /// Returns the routes to extension servers.
    pub(crate) fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// Watches APIServices and checks extension servers until the future is dropped.
    pub(crate) fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        let objects: Arc<dyn listwatch_aggregator::ApiServiceObjects> = Arc::<StoredObjects>::clone(&self.objects);
        Arc::clone(&self.aggregator).run(objects)
    }

    /// Returns the name of the APIService whose server provides a document below `/openapi/v3/`; `None` for a local
    /// document.
    ///
    /// # Errors
    /// 500 if the documents could not be merged.
    pub(crate) async fn openapi_v3_owner(&self, path: &str) -> Result<Option<String>, Status> {
        Ok(self.documents.current().await?.owner(path).map(str::to_owned))
    }

    /// Returns the merged document of a path; `None` for a path that serves a local document.
    pub(crate) async fn document(
        &self,
        segments: &[&str],
        request: DocumentRequest<'_>,
    ) -> Option<Result<Document, Status>> {
        match segments {
            [] | ["index.html"] => Some(Ok(self.documents.root_paths(request.zpages))),
            ["apis"] => Some(self.documents.current().await.and_then(|merged| merged.groups(request))),
            ["apis", group] => {
                let services = self.aggregator.services();
                let is_remote = services.iter().any(|service| service.group == *group && service.is_remote());
                let document = is_remote.then(|| api_group(&services, group)).flatten()?;
                Some(Document::negotiated(request, Bytes::from(document.to_string())))
            }
            ["openapi", "v2"] => match self.documents.current().await {
                Ok(merged) => Some(merged.openapi_v2(request).await),
                Err(status) => Some(Err(status)),
            },
            ["openapi", "v3"] => Some(self.documents.current().await.map(|merged| merged.openapi_v3(request))),
            _ => None,
        }
    }
}
