//! Discovery and OpenAPI of this server and of extension servers, merged at the first request.

use std::sync::Arc;

use bytes::Bytes;
use listwatch_aggregator::{
    Aggregator, ApiService, RemoteDocuments, V3Index, api_group_list, merge_aggregated, merge_v2, merge_v3_index,
};
use listwatch_discovery::openapi::{self, OpenApi, Version2};
use listwatch_discovery::{ServedZpages, root_paths};
use listwatch_json::Value;
use listwatch_meta::Status;
use listwatch_registry::{Backend, Registry};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;

use crate::documents::{Document, DocumentRequest, Documents, OpenApiV2, aggregated_or, build_failed};

/// The merged documents of the current state.
///
/// ```text
///  request ─▶ fits the present state? ─┬─ yes ─────────────────────────────▶ serve
///                                      ├─ only remote documents differ ────▶ serve the old ones, merge in the background
///                                      └─ registry or APIServices differ ──▶ wait for the merge
/// ```
///
/// After a client changes the registry or an APIService, the next response must contain the change. Documents of
/// extension servers may appear later. At most one merge runs at a time, on a separate thread.
pub(super) struct MergedDocuments {
    backend: Arc<Backend>,
    /// The documents of this server.
    local: Arc<Documents>,
    aggregator: Arc<Aggregator>,
    present: Mutex<Option<Arc<Merged>>>,
    /// A lock that the running merge holds.
    merging: Arc<tokio::sync::Mutex<()>>,
}

/// The sources of merged documents.
#[derive(Clone)]
struct Sources {
    registry: Arc<Registry>,
    services: Arc<Vec<ApiService>>,
    remote: Arc<RemoteDocuments>,
}

/// The merged documents of one registry and one generation of remote documents.
pub(super) struct Merged {
    sources: Sources,
    groups: Bytes,
    aggregated: listwatch_discovery::Document,
    index: V3Index,
    index_document: listwatch_discovery::Document,
    /// The OpenAPI v2 document, which is merged when a form is encoded.
    openapi_v2: OpenApiV2,
}

impl Sources {
    /// Whether both sources have the same registry and the same APIServices. Remote documents may differ.
    fn has_changes_of_clients(&self, others: &Sources) -> bool {
        Arc::ptr_eq(&self.registry, &others.registry) && Arc::ptr_eq(&self.services, &others.services)
    }

    fn equals(&self, others: &Sources) -> bool {
        self.has_changes_of_clients(others) && self.remote.generation == others.remote.generation
    }
}

impl MergedDocuments {
    pub(super) fn new(backend: Arc<Backend>, local: Arc<Documents>, aggregator: Arc<Aggregator>) -> Self {
        MergedDocuments { backend, local, aggregator, present: Mutex::default(), merging: Arc::default() }
    }

    fn sources(&self) -> Sources {
        // The documents come last: they describe at least these services.
        let (registry, services) = (self.backend.registry(), self.aggregator.services());
        Sources { registry, services, remote: self.aggregator.documents() }
    }

    /// Returns the documents of the current state.
    ///
    /// # Errors
    /// 500 if the merge failed.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Arc<Merged>, Status> {
        let wanted = self.sources();
        let present = self.present.lock().clone();
        match present {
            Some(present) if present.sources.equals(&wanted) => return Ok(present),
            Some(present) if present.sources.has_changes_of_clients(&wanted) => {
                if let Ok(merging) = Arc::clone(&self.merging).try_lock_owned() {
                    drop(self.merge(merging));
                }
                return Ok(present);
            }
            _ => {}
        }
        let merging = Arc::clone(&self.merging).lock_owned().await;
        let present = self.present.lock().clone();
        match present.filter(|present| present.sources.has_changes_of_clients(&self.sources())) {
            Some(present) => Ok(present),
            None => self.merge(merging).await.map_err(|error| build_failed(&error)),
        }
    }

    /// Returns the document of `/`. An extension server is listed from the creation of its APIService on.
    pub(super) fn root_paths(&self, zpages: ServedZpages) -> Document {
        let services = self.aggregator.services();
        let remote = services.iter().filter(|service| service.is_remote());
        let remote = remote.map(|service| (service.group.as_str(), service.version.as_str()));
        Document::json(root_paths(&self.backend.registry(), zpages, remote))
    }

    /// Merges the documents of the current state. The merge completes even if the caller drops its future.
    fn merge(self: &Arc<Self>, merging: OwnedMutexGuard<()>) -> JoinHandle<Arc<Merged>> {
        let this = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let merged = Arc::new(Merged::new(&this.local, this.sources()));
            *this.present.lock() = Some(Arc::clone(&merged));
            drop(merging);
            merged
        })
    }
}

fn parse(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap_or_default()
}

impl Merged {
    fn new(local: &Documents, sources: Sources) -> Self {
        let Sources { registry, services, remote } = &sources;
        let aggregated = merge_aggregated(&parse(&local.aggregated_apis(registry)), services, &remote.discovery());
        let openapi = local.openapi(registry);
        let local_index = parse(&openapi.v3_index().body);
        let indexes = by_priority(services).filter_map(|service| {
            let index = remote.by_name.get(&service.name)?.openapi_v3.as_deref()?;
            Some((service.name.as_str(), index))
        });
        let index = merge_v3_index(&local_index, indexes);
        let merged_sources = sources.clone();
        let version2 = Version2::new(move || merged_v2(&openapi, &merged_sources));
        Merged {
            groups: Bytes::from(api_group_list(services).to_string()),
            aggregated: listwatch_discovery::Document::new(aggregated.to_string()),
            index_document: listwatch_discovery::Document::new(index.document.to_string()),
            index,
            openapi_v2: OpenApiV2::new(Arc::new(version2)),
            sources,
        }
    }

    /// Returns the document of `/apis`.
    pub(super) fn groups(&self, request: DocumentRequest<'_>) -> Result<Document, Status> {
        aggregated_or(request, &self.aggregated, || Document::negotiated(request, self.groups.clone()))
    }

    /// Returns the document of `/openapi/v3`.
    pub(super) fn openapi_v3(&self, request: DocumentRequest<'_>) -> Document {
        Document::with_etag(request, openapi::JSON, &self.index_document)
    }

    /// Returns the name of the APIService whose server provides a document below `/openapi/v3/`.
    pub(super) fn owner(&self, path: &str) -> Option<&str> {
        self.index.owners.get(path).map(String::as_str)
    }

    /// Returns the document of `/openapi/v2`: the local document merged with the remote documents. Both forms describe
    /// all group versions under one ETag (`buildMergeSpecLocked` in
    /// `kube-aggregator/pkg/controllers/openapi/aggregator`).
    ///
    /// # Errors
    /// 406 if the client accepts no form; 500 if the merge failed.
    pub(super) async fn openapi_v2(&self, request: DocumentRequest<'_>) -> Result<Document, Status> {
        self.openapi_v2.answer(request).await
    }
}

/// Merges the local version 2 document with the remote documents.
fn merged_v2(local: &OpenApi, sources: &Sources) -> Value {
    let mut merged = local.v2_json();
    for service in by_priority(&sources.services) {
        let remote = sources.remote.by_name.get(&service.name);
        if let Some(spec) = remote.and_then(|found| found.openapi_v2.as_deref()) {
            merge_v2(&mut merged, &parse(spec));
        }
    }
    merged
}

/// Returns the remote APIServices, sorted by the priority of group and version, highest first.
fn by_priority(services: &[ApiService]) -> impl Iterator<Item = &ApiService> {
    let sorted = listwatch_aggregator::sorted_by_group_and_version(services);
    sorted.into_iter().flatten().filter(|service| service.is_remote())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use http_body_util::Full;
    use listwatch_json::json;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn merged_documents_contain_a_registry_change_in_the_next_response() {
        let server = crate::ApiServer::builder().build().await.unwrap();
        let shared = &server.shared;
        let of = async || shared.aggregation.documents.current().await.unwrap();
        let before = of().await;
        let schema = json!({"openAPIV3Schema": {"type": "object"}});
        let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
        let definition = json!({"metadata": {"name": "gadgets.example.com"}, "spec": {"group": "example.com",
            "scope": "Cluster", "names": {"plural": "gadgets", "kind": "Gadget"}, "versions": [version]}});
        let request = Request::post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
        let body = Full::new(Bytes::from(definition.to_string()));
        let request = request.header("content-type", "application/json").body(body).unwrap();
        assert_eq!(server.service().handle(request).await.status(), 201);
        for _ in 0..1_000 {
            if shared.backend.registry().find("example.com", "v1", "gadgets").is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let (one, other) = tokio::join!(of(), of());
        let shows = |merged: &Merged| parse(&merged.aggregated.body).to_string().contains("gadgets");
        assert!(!shows(&before) && shows(&one) && shows(&other));
    }
}
