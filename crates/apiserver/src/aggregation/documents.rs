//! Discovery and OpenAPI of this server and of extension servers, merged when first asked for.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use listwatch_aggregator::{
    Aggregator, ApiService, RemoteDocuments, V3Index, api_group_list, merge_aggregated, merge_v2, merge_v3_index,
};
use listwatch_meta::Status;
use listwatch_registry::Registry;
use parking_lot::Mutex;
use serde_json::Value;

use crate::documents::{Document, Documents, aggregated_or, discovery, openapi};

/// The merged documents of the present state.
#[derive(Default)]
pub(super) struct MergedDocuments(Mutex<Option<Arc<Merged>>>);

/// The merged documents of one registry and one generation of remote documents.
pub(super) struct Merged {
    registry: Arc<Registry>,
    services: Arc<Vec<ApiService>>,
    remote: Arc<RemoteDocuments>,
    groups: Bytes,
    aggregated: discovery::Document,
    index: V3Index,
    index_document: discovery::Document,
    openapi_v2: OnceLock<discovery::Document>,
}

impl MergedDocuments {
    /// The documents of the present state.
    pub(super) fn of(&self, local: &Documents, registry: &Arc<Registry>, aggregator: &Aggregator) -> Arc<Merged> {
        let (services, remote) = (aggregator.services(), aggregator.documents());
        let mut current = self.0.lock();
        let fits = |merged: &&Arc<Merged>| {
            Arc::ptr_eq(&merged.registry, registry)
                && Arc::ptr_eq(&merged.services, &services)
                && merged.remote.generation == remote.generation
        };
        if let Some(merged) = current.as_ref().filter(fits) {
            return Arc::clone(merged);
        }
        let merged = Arc::new(Merged::new(local, registry, services, remote));
        Arc::clone(current.insert(merged))
    }
}

fn parse(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_default()
}

impl Merged {
    fn new(
        local: &Documents,
        registry: &Arc<Registry>,
        services: Arc<Vec<ApiService>>,
        remote: Arc<RemoteDocuments>,
    ) -> Self {
        let aggregated = merge_aggregated(&parse(&local.aggregated_apis(registry)), &services, &remote.discovery());
        let local_index = parse(&local.openapi(registry).v3_index().body);
        let indexes = by_priority(&services).filter_map(|service| {
            let index = remote.by_name.get(&service.name)?.openapi_v3.as_deref()?;
            Some((service.name.as_str(), index))
        });
        let index = merge_v3_index(&local_index, indexes);
        Merged {
            groups: Bytes::from(api_group_list(&services).to_string()),
            aggregated: discovery::Document::new(aggregated.to_string()),
            index_document: discovery::Document::new(index.document.to_string()),
            index,
            openapi_v2: OnceLock::new(),
            registry: Arc::clone(registry),
            services,
            remote,
        }
    }

    /// `/apis`.
    pub(super) fn groups(&self, accept: Option<&str>) -> Result<Document, Status> {
        aggregated_or(accept, &self.aggregated, || self.groups.clone())
    }

    /// `/openapi/v3`.
    pub(super) fn openapi_v3(&self) -> Document {
        Document::of(openapi::JSON, &self.index_document)
    }

    /// The APIService whose server has a document below `/openapi/v3/`.
    pub(super) fn owner(&self, path: &str) -> Option<&str> {
        self.index.owners.get(path).map(String::as_str)
    }

    /// `/openapi/v2`, from the local document. The merge takes tens of milliseconds, on a thread of its own.
    pub(super) async fn openapi_v2(self: Arc<Self>, local: discovery::Document) -> Document {
        let this = Arc::clone(&self);
        let unmerged = local.clone();
        let made = tokio::task::spawn_blocking(move || {
            this.openapi_v2
                .get_or_init(|| {
                    let mut merged = parse(&local.body);
                    for service in by_priority(&this.services) {
                        if let Some(spec) =
                            this.remote.by_name.get(&service.name).and_then(|found| found.openapi_v2.as_deref())
                        {
                            merge_v2(&mut merged, spec);
                        }
                    }
                    discovery::Document::new(merged.to_string())
                })
                .clone()
        });
        match made.await {
            Ok(document) => Document::of(openapi::JSON, &document),
            // The runtime ends: the local document is still right.
            Err(_) => Document::of(openapi::JSON, &unmerged),
        }
    }
}

/// The remote APIServices, those of the preferred groups and versions first.
fn by_priority(services: &[ApiService]) -> impl Iterator<Item = &ApiService> {
    let sorted = listwatch_aggregator::sorted_by_group_and_version(services);
    sorted.into_iter().flatten().filter(|service| service.service.is_some())
}
