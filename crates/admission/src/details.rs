//! [`RequestDetails`]: the parts of a request for plugins that send the object to others, such as webhooks
//! (`admission.ObjectInterfaces`). The parts are computed on demand.

use std::time::Instant;

use listwatch_json::{Map, Value};

use crate::AdmissionFuture;

/// A kind in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindName<'a> {
    /// The API group; `""` for the core group.
    pub group: &'a str,
    /// The API version, e.g. `v1`.
    pub version: &'a str,
    /// The kind, e.g. `Pod`.
    pub kind: &'a str,
}

/// A resource in one version, with the kind of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceName<'a> {
    /// The API group; `""` for the core group.
    pub group: &'a str,
    /// The API version, e.g. `v1`.
    pub version: &'a str,
    /// The plural name, e.g. `pods`.
    pub resource: &'a str,
    /// The kind of the objects. Of a subresource: the kind of its body, e.g. `autoscaling/v1` Scale.
    pub kind: KindName<'a>,
}

/// The served versions of the object of a request, and the options of the request.
///
/// Plugins hold an object in the version in which the server validates it. A webhook or a policy names a version. The
/// functions convert between the two:
///
/// ```text
///  object of a plugin ──show──▶ object of a client ──patch──▶ decode ──restore──▶ object of a plugin
/// ```
pub trait RequestDetails: Send + Sync {
    /// Returns the resource and the kind of the request.
    fn requested(&self) -> ResourceName<'_>;

    /// Returns the other served versions and groups of the resource that have the same objects, in the order of
    /// discovery. Empty for most resources.
    fn equivalents(&self) -> Vec<ResourceName<'_>>;

    /// Returns the CreateOptions, UpdateOptions or DeleteOptions of the request in `meta.k8s.io/v1`; `None` on connect.
    fn options(&self) -> Option<Map>;

    /// Returns the verb of the request, as authorizers see it: plugins see an update and a patch as the same operation.
    /// Empty for the server's own writes.
    fn verb(&self) -> &str;

    /// Returns the name in the path of the request (`RequestInfo.Name`). Empty for a POST of a collection, whose object
    /// has its name in the body, and for the server's own writes.
    fn path_name(&self) -> &str;

    /// Returns the time at which the request must be complete; `None` for the server's own writes.
    fn deadline(&self) -> Option<Instant>;

    /// Converts the new object of a plugin to a version, as clients see the object.
    ///
    /// # Errors
    /// 500 if the object cannot be converted.
    fn show<'a>(&'a self, object: &'a Map, to: ResourceName<'a>) -> AdmissionFuture<'a, Map>;

    /// Converts the old object of the request to a version, as [`RequestDetails::show`] does.
    ///
    /// # Errors
    /// 500 if the object cannot be converted.
    fn show_old<'a>(&'a self, old_object: &'a Map, to: ResourceName<'a>) -> AdmissionFuture<'a, Map>;

    /// Applies the operations of a JSON patch (RFC 6902) to a shown object. The number and the cost of the operations are
    /// limited.
    ///
    /// # Errors
    /// [`PatchError`] with the text of the operation that does not apply. The object is then partly changed.
    fn patch(&self, shown: &mut Map, operations: Vec<Value>) -> Result<(), PatchError>;

    /// Merges an apply configuration into a shown object of a version, as server-side apply does, without ownership:
    /// named fields are set, and nothing is removed (`patch/smd.go`).
    ///
    /// # Errors
    /// The text for a configuration that does not match the type, or that changes a part of an atomic list, map or
    /// struct.
    fn merge(&self, shown: &Map, configuration: Map, of: ResourceName<'_>) -> Result<Map, String>;

    /// Decodes a patched object in a version: checks the types of the fields and removes unknown fields.
    ///
    /// # Errors
    /// The error text of the decoder.
    fn decode(&self, patched: Map, of: ResourceName<'_>) -> Result<Map, String>;

    /// Applies the defaults of a version to a decoded object, and converts the object to the version of plugins.
    /// `original` is the object before the patch. If the managed fields of the patched object are invalid, those of
    /// `original` are used.
    ///
    /// # Errors
    /// 500 if the object cannot be converted.
    fn restore<'a>(&'a self, decoded: Map, of: ResourceName<'a>, original: &'a Map) -> AdmissionFuture<'a, Map>;
}

/// The error of a JSON patch, with the text of the operation that does not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// A `test` operation failed.
    TestFailed(String),
    /// Another operation failed, or the result is not an object of an acceptable size.
    Failed(String),
}

impl std::fmt::Display for PatchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (PatchError::TestFailed(why) | PatchError::Failed(why)) = self;
        f.write_str(why)
    }
}

impl std::error::Error for PatchError {}

/// Request details for tests of plugins that use at most the verb and the name in the path.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct NoDetails {
    pub(crate) verb: &'static str,
    pub(crate) path_name: &'static str,
}

#[cfg(test)]
impl RequestDetails for NoDetails {
    fn requested(&self) -> ResourceName<'_> {
        let kind = KindName { group: "", version: "v1", kind: "" };
        ResourceName { group: "", version: "v1", resource: "", kind }
    }

    fn equivalents(&self) -> Vec<ResourceName<'_>> {
        Vec::new()
    }

    fn options(&self) -> Option<Map> {
        None
    }

    fn verb(&self) -> &str {
        self.verb
    }

    fn path_name(&self) -> &str {
        self.path_name
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn show<'a>(&'a self, object: &'a Map, _: ResourceName<'a>) -> AdmissionFuture<'a, Map> {
        Box::pin(std::future::ready(Ok(object.clone())))
    }

    fn show_old<'a>(&'a self, old_object: &'a Map, _: ResourceName<'a>) -> AdmissionFuture<'a, Map> {
        Box::pin(std::future::ready(Ok(old_object.clone())))
    }

    fn patch(&self, _: &mut Map, _: Vec<Value>) -> Result<(), PatchError> {
        Ok(())
    }

    fn merge(&self, shown: &Map, _: Map, _: ResourceName<'_>) -> Result<Map, String> {
        Ok(shown.clone())
    }

    fn decode(&self, patched: Map, _: ResourceName<'_>) -> Result<Map, String> {
        Ok(patched)
    }

    fn restore<'a>(&'a self, decoded: Map, _: ResourceName<'a>, _: &'a Map) -> AdmissionFuture<'a, Map> {
        Box::pin(std::future::ready(Ok(decoded)))
    }
}
