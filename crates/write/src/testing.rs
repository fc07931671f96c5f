//! Test support: creates a writer for a store, and parses the method and path of a write.

use std::sync::Arc;

use listwatch_cacher::Limits;
use listwatch_registry::{Backend, Registry, Resource};
use listwatch_storage::Storage;

use crate::request::WriteVerb;
use crate::writer::Writer;
use listwatch_admission::AdmissionChain;

/// Returns a writer for the built-in kinds over a store, with the built-in admission plugins.
pub fn writer(storage: Arc<dyn Storage>) -> Writer {
    let backend = Backend::new(storage, Registry::builtin(), true, Limits::default());
    Writer::new(Arc::new(backend), AdmissionChain::default())
}

/// The parts of a [`WriteRequest`](crate::WriteRequest) that come from its method and path.
#[derive(Debug)]
pub struct Address<'a> {
    /// The verb of the write.
    pub verb: WriteVerb,
    /// The resource in the path.
    pub resource: Arc<Resource>,
    /// The namespace in the path.
    pub namespace: Option<&'a str>,
    /// The name in the path.
    pub name: Option<&'a str>,
    /// The subresource in the path.
    pub subresource: Option<&'a str>,
}

/// Parses a path at `/api/…` or `/apis/…` for a writing method.
///
/// # Panics
/// Panics if the path is not the path of a resource, or if the method is not a write.
pub fn address<'a>(registry: &Registry, method: &str, path: &'a str) -> Address<'a> {
    let mut elements = path.split('/').skip(1).peekable();
    let group = if elements.next() == Some("apis") { elements.next().unwrap_or_default() } else { "" };
    let version = elements.next().unwrap_or_default();
    let mut rest: Vec<&str> = elements.collect();
    // As in the routes, a binding is posted to the pod that it names.
    let binding = (rest.last() == Some(&"bindings")).then_some("binding");
    if let (Some(_), Some(last)) = (binding, rest.last_mut()) {
        *last = "pods";
    }
    let find = |plural: &str| registry.find(group, version, plural).cloned();
    let found = match rest[..] {
        ["namespaces", namespace, plural, ref rest @ ..] if find(plural).is_some() => {
            find(plural).map(|resource| (resource, Some(namespace), rest))
        }
        [plural, ref rest @ ..] => find(plural).map(|resource| (resource, None, rest)),
        [] => None,
    };
    let (resource, namespace, rest) = found.unwrap_or_else(|| panic!("no resource at {path}"));
    let (name, subresource) = (rest.first().copied(), rest.get(1).copied().or(binding));
    let verb = match (method, name) {
        ("POST", _) => WriteVerb::Create,
        ("PUT", _) => WriteVerb::Update,
        ("PATCH", _) => WriteVerb::Patch,
        ("DELETE", Some(_)) => WriteVerb::Delete,
        ("DELETE", None) => WriteVerb::DeleteCollection,
        _ => panic!("{method} writes nothing"),
    };
    // As in the routes of kube-apiserver, the namespace of a Namespace is its name.
    let own = resource.plural == "namespaces" && resource.group.is_empty();
    Address { verb, namespace: namespace.or(name.filter(|_| own)), name, subresource, resource }
}
