//! [`RemoteDocuments`]: the latest documents of the extension servers. The controller updates this plain value after
//! each request.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::Value;
use serde::Deserialize;
use tracing::warn;

use crate::ApiService;
use crate::discovery::{self, MalformedDiscovery, RemoteVersion};
use crate::fetch::Fetched;
use crate::openapi::restrict_v2;

/// The parameters of the media type of the aggregated document.
const AGGREGATED: [&str; 3] = ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"];

/// The documents of the server of one APIService.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteDocument {
    /// The discovery of the group version; `None` before the first attempt.
    pub discovery: Option<RemoteVersion>,
    /// The URL of each path in the OpenAPI v3 index; `None` if the server has none.
    pub openapi_v3: Option<Arc<BTreeMap<String, String>>>,
    /// The OpenAPI v2 document in JSON, restricted to the paths of the group version; `None` if the server has none.
    pub openapi_v2: Option<Bytes>,
    pub(crate) discovery_etag: String,
    pub(crate) openapi_v2_etag: String,
}

/// The documents of all extension servers, by the name of the APIService.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteDocuments {
    /// The number of changes. A merged document is valid while this number stays the same.
    pub generation: u64,
    /// The documents by the name of the APIService.
    pub by_name: BTreeMap<String, RemoteDocument>,
}

/// The largest total size of the OpenAPI v2 documents of all extension servers, in bytes. A document that would exceed
/// it is omitted, and the other documents stay.
const OPENAPI_V2_TOTAL_BYTES_MAX: usize = 32 * 1024 * 1024;

impl RemoteDocuments {
    /// Replaces the documents of one APIService. The OpenAPI v2 document is omitted if it would exceed
    /// [`OPENAPI_V2_TOTAL_BYTES_MAX`].
    pub(crate) fn insert(&mut self, name: &str, mut document: RemoteDocument) {
        let bytes = |document: &RemoteDocument| document.openapi_v2.as_ref().map_or(0, Bytes::len);
        let others: usize =
            self.by_name.iter().filter(|(found, _)| *found != name).map(|(_, found)| bytes(found)).sum();
        if others + bytes(&document) > OPENAPI_V2_TOTAL_BYTES_MAX {
            warn!(api_service = name, "the OpenAPI v2 documents of extension servers are too large together");
            document.openapi_v2 = None;
            document.openapi_v2_etag = String::new();
        }
        self.by_name.insert(name.to_owned(), document);
        self.generation += 1;
    }

    /// The discovery of each APIService, by name. [`merge_aggregated`](crate::merge_aggregated) has a parameter of this
    /// type.
    pub fn discovery(&self) -> BTreeMap<String, RemoteVersion> {
        let known = self.by_name.iter();
        known.filter_map(|(name, document)| Some((name.clone(), document.discovery.clone()?))).collect()
    }
}

impl RemoteDocument {
    /// Applies the response to a request for `/apis` in the aggregated form.
    ///
    /// Returns whether the discovery is complete. Otherwise the caller must request the document of the group version,
    /// and pass the response to [`RemoteDocument::take_resource_list`].
    ///
    /// # Errors
    /// [`MalformedDiscovery`] for an unreadable document. The old document stays and is marked stale.
    pub(crate) fn take_aggregated(
        &mut self,
        service: &ApiService,
        fetched: &Fetched,
    ) -> Result<bool, MalformedDiscovery> {
        let is_aggregated =
            AGGREGATED.iter().all(|part| fetched.content_type.split(';').any(|found| found.trim() == *part));
        match fetched.code {
            304 if !self.discovery_etag.is_empty() => {
                if let Some(discovery) = &mut self.discovery {
                    discovery.is_current = true;
                }
                Ok(true)
            }
            200 if is_aggregated => {
                let parsed = discovery::parse_aggregated(&fetched.body, &service.group, &service.version);
                let resources = parsed.inspect_err(|_| self.fail_discovery())?;
                self.discovery = Some(RemoteVersion { resources, is_current: true });
                self.discovery_etag = fetched.etag.clone();
                Ok(true)
            }
            503 => {
                self.fail_discovery();
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Applies the response to a request for the document of the group version.
    ///
    /// # Errors
    /// [`MalformedDiscovery`] for a response without a valid document. The old document stays and is marked stale.
    pub(crate) fn take_resource_list(&mut self, fetched: &Fetched) -> Result<(), MalformedDiscovery> {
        let parsed = match fetched.code {
            200 => discovery::parse_resource_list(&fetched.body),
            code => Err(MalformedDiscovery::of_code(code)),
        };
        let resources = parsed.inspect_err(|_| self.fail_discovery())?;
        self.discovery = Some(RemoteVersion { resources, is_current: true });
        self.discovery_etag = String::new();
        Ok(())
    }

    /// Marks the discovery stale. The known resources stay.
    pub(crate) fn fail_discovery(&mut self) {
        let known = self.discovery.take().map(|discovery| discovery.resources).unwrap_or_default();
        self.discovery = Some(RemoteVersion { resources: known, is_current: false });
    }

    /// Applies the response to a request for `/openapi/v3`. Returns whether the response is usable; otherwise the old
    /// index stays.
    pub(crate) fn take_openapi_v3(&mut self, fetched: &Fetched) -> bool {
        match fetched.code {
            404 => {
                self.openapi_v3 = None;
                true
            }
            200 => match parse_index(&fetched.body) {
                Some(index) => {
                    self.openapi_v3 = Some(Arc::new(index));
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    /// Applies the response to a request for `/openapi/v2`. Returns whether the response is usable; otherwise the old
    /// document stays.
    pub(crate) fn take_openapi_v2(&mut self, service: &ApiService, fetched: &Fetched) -> bool {
        match fetched.code {
            304 => !self.openapi_v2_etag.is_empty(),
            404 => {
                self.openapi_v2 = None;
                self.openapi_v2_etag = String::new();
                true
            }
            200 => match serde_json::from_slice::<Value>(&fetched.body) {
                Ok(spec) if spec.is_object() => {
                    let prefix = format!("{}/", service.discovery_path());
                    self.openapi_v2 = Some(Bytes::from(restrict_v2(&spec, &prefix).to_string()));
                    self.openapi_v2_etag = fetched.etag.clone();
                    true
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// Parses the URLs of an OpenAPI v3 index.
fn parse_index(document: &[u8]) -> Option<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        paths: BTreeMap<String, Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        #[serde(rename = "serverRelativeURL")]
        server_relative_url: String,
    }
    let index: Index = serde_json::from_slice(document).ok()?;
    Some(index.paths.into_iter().map(|(path, item)| (path, item.server_relative_url)).collect())
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    const CONTENT_TYPE: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    fn service() -> ApiService {
        ApiService::from_object(&json!({"metadata": {"name": "v1.g"}, "spec": {"group": "g", "version": "v1",
            "service": {"namespace": "ns", "name": "api"}}}))
        .unwrap()
    }

    fn fetched(code: u16, content_type: &str, body: &Value) -> Fetched {
        let body = Bytes::from(body.to_string());
        Fetched { code, content_type: content_type.to_owned(), etag: "\"1\"".to_owned(), body }
    }

    fn aggregated() -> Value {
        json!({"items": [{"metadata": {"name": "g"},
            "versions": [{"version": "v1", "resources": [{"resource": "things"}]}]}]})
    }

    #[test]
    fn failed_discovery_is_stale_until_the_next_success() {
        let mut document = RemoteDocument::default();
        let state = |document: &RemoteDocument| {
            let discovery = document.discovery.as_ref().unwrap();
            (discovery.resources.len(), discovery.is_current)
        };
        assert_eq!(document.take_aggregated(&service(), &fetched(200, CONTENT_TYPE, &aggregated())), Ok(true));
        assert_eq!(state(&document), (1, true));
        assert_eq!(document.take_aggregated(&service(), &fetched(503, "", &Value::Null)), Ok(true));
        assert_eq!(state(&document), (1, false), "what was known stays");
        assert_eq!(document.take_aggregated(&service(), &fetched(304, "", &Value::Null)), Ok(true));
        assert_eq!(state(&document), (1, true));
        assert!(document.take_aggregated(&service(), &fetched(200, CONTENT_TYPE, &json!([]))).is_err());
        assert_eq!(state(&document), (1, false));
    }

    #[test]
    fn server_without_aggregated_discovery_needs_the_group_version_document() {
        let mut document = RemoteDocument::default();
        let legacy = json!({"kind": "APIGroupList", "groups": []});
        assert_eq!(document.take_aggregated(&service(), &fetched(200, "application/json", &legacy)), Ok(false));
        let list = json!({"resources": [{"name": "things", "kind": "Thing", "verbs": ["get"]}]});
        assert_eq!(document.take_resource_list(&fetched(200, "application/json", &list)), Ok(()));
        assert!(document.discovery.as_ref().unwrap().is_current);
        assert!(document.take_resource_list(&fetched(404, "", &Value::Null)).is_err());
        assert!(!document.discovery.as_ref().unwrap().is_current);
    }

    #[test]
    fn openapi_document_above_the_total_size_limit_is_omitted() {
        let of = |bytes: usize| RemoteDocument { openapi_v2: Some(Bytes::from(vec![0; bytes])), ..Default::default() };
        let mut documents = RemoteDocuments::default();
        documents.insert("a", of(OPENAPI_V2_TOTAL_BYTES_MAX - 1));
        documents.insert("b", of(2));
        documents.insert("a", of(OPENAPI_V2_TOTAL_BYTES_MAX));
        documents.insert("c", of(1));
        let kept: Vec<bool> = documents.by_name.values().map(|found| found.openapi_v2.is_some()).collect();
        assert_eq!(kept, [true, false, false]);
        assert_eq!(documents.generation, 4);
    }

    #[test]
    fn unusable_response_does_not_replace_the_openapi_document() {
        let mut document = RemoteDocument::default();
        let index = json!({"paths": {"apis/g/v1": {"serverRelativeURL": "/openapi/v3/apis/g/v1?hash=1"}}});
        assert!(document.take_openapi_v3(&fetched(200, "", &index)));
        assert!(!document.take_openapi_v3(&fetched(500, "", &Value::Null)) && document.openapi_v3.is_some());
        assert!(!document.take_openapi_v3(&fetched(200, "", &json!({}))) && document.openapi_v3.is_some());
        assert!(document.take_openapi_v3(&fetched(404, "", &Value::Null)) && document.openapi_v3.is_none());
        let spec = json!({"paths": {"/apis/g/v1/things": {}, "/apis/h/v1/others": {}}});
        assert!(document.take_openapi_v2(&service(), &fetched(200, "", &spec)));
        let kept: Value = serde_json::from_slice(document.openapi_v2.as_ref().unwrap()).unwrap();
        assert_eq!(kept["paths"], json!({"/apis/g/v1/things": {}}));
        assert!(document.take_openapi_v2(&service(), &fetched(304, "", &Value::Null)));
        assert!(document.openapi_v2.is_some());
        assert!(document.take_openapi_v2(&service(), &fetched(404, "", &Value::Null)));
        assert!(document.openapi_v2.is_none());
        assert!(!document.take_openapi_v2(&service(), &fetched(304, "", &Value::Null)), "304 without an ETag");
    }
}
