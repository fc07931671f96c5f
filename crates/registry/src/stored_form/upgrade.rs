//! Upgrades decoded objects as kube-apiserver does at each read of the store: converts former versions and storage
//! versions ([`upgraded_definition`]), and adds defaults ([`KindUpgrade`]).
//!
//! kube-apiserver applies all defaults at each read. This server applies them where a text of the JSON shows that one may
//! be absent ([`StoredText`]), because a tree of each object would take longer than the rest of a read.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use listwatch_json::{Value, json};
use listwatch_kinds::former_versions::{self, FormerVersion};
use listwatch_kinds::versions::{SECOND_VERSIONS, SecondVersion};
use listwatch_kinds::{Kind, StoredText};
use listwatch_validation::{Object, text};
use listwatch_wire::protobuf::{self, DecodeError};
use memchr::memmem::{self, Finder};
use serde::Deserialize;

use super::PlainJson;

/// The prefix of the keys of CustomResourceDefinitions.
pub(super) const DEFINITIONS: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// The version in which kube-apiserver stores CustomResourceDefinitions, because v1beta1 is more compact
/// (`pkg/controlplane/apiserver/apiextensions.go`, Kubernetes v1.36).
const STORED_DEFINITION: &str = "apiextensions.k8s.io/v1beta1";

/// Fields that v1beta1 has at the top level of the spec if they are equal in all versions: name there, name in a
/// version.
const SHARED_MEMBERS: [(&str, &str); 4] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
    ("selectableFields", "selectableFields"),
];

const VERSION_MEMBERS: [&str; 9] = [
    "name",
    "served",
    "storage",
    "deprecated",
    "deprecationWarning",
    "schema",
    "subresources",
    "additionalPrinterColumns",
    "selectableFields",
];

const COLUMN_MEMBERS: [(&str, &str); 6] = [
    ("name", "name"),
    ("type", "type"),
    ("format", "format"),
    ("description", "description"),
    ("priority", "priority"),
    ("JSONPath", "jsonPath"),
];

/// Converts a CustomResourceDefinition that is stored in v1beta1 to v1. Returns `None` for any other value.
pub(super) fn upgraded_definition(stored: &[u8]) -> Option<Bytes> {
    if type_of(stored)?.0 != STORED_DEFINITION {
        return None;
    }
    let mut definition: Object = serde_json::from_slice(stored).ok()?;
    definition.insert("apiVersion", json!("apiextensions.k8s.io/v1"));
    if let Some(Value::Object(spec)) = definition.get_mut("spec") {
        *spec = upgraded_spec(spec);
    }
    serde_json::to_vec(&definition).ok().map(Bytes::from)
}

/// Converts the spec of a definition in v1beta1 to v1 (`pkg/apis/apiextensions/{v1beta1/defaults.go,v1/conversion.go}`
/// of k8s.io/apiextensions-apiserver).
fn upgraded_spec(spec: &mut Object) -> Object {
    let mut versions = match taken(spec, "versions") {
        Some(Value::Array(versions)) if !versions.is_empty() => versions,
        _ => match taken(spec, "version") {
            Some(name) => vec![json!({"name": name, "served": true, "storage": true})],
            None => Vec::new(),
        },
    };
    for (shared, member) in SHARED_MEMBERS {
        let Some(value) = taken(spec, shared) else { continue };
        for version in versions.iter_mut().filter_map(Value::as_object_mut) {
            version.insert(member, value.clone());
        }
    }
    for version in versions.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(Value::Array(columns)) = version.get_mut("additionalPrinterColumns") {
            for column in columns.iter_mut().filter_map(Value::as_object_mut) {
                *column = renamed(column, &COLUMN_MEMBERS);
            }
        }
        *version = renamed(version, &VERSION_MEMBERS.map(|member| (member, member)));
    }
    let mut upgraded = renamed(spec, &["group", "names", "scope"].map(|member| (member, member)));
    upgraded.insert("versions", Value::Array(versions));
    if let Some(Value::Object(mut conversion)) = taken(spec, "conversion") {
        let webhook =
            [("webhookClientConfig", "clientConfig"), ("conversionReviewVersions", "conversionReviewVersions")];
        let webhook = renamed(&mut conversion, &webhook);
        let mut conversion = renamed(&mut conversion, &[("strategy", "strategy")]);
        if !webhook.is_empty() {
            conversion.insert("webhook", Value::Object(webhook));
        }
        upgraded.insert("conversion", Value::Object(conversion));
    }
    // In v1beta1 the default is true, in v1 it is false.
    if spec.get("preserveUnknownFields") != Some(&Value::Bool(false)) {
        upgraded.insert("preserveUnknownFields", Value::Bool(true));
    }
    upgraded
}

/// The upgrades of the stored objects of one built-in kind.
#[derive(Debug)]
pub(super) struct KindUpgrade {
    kind: &'static Kind,
    /// The `apiVersion` in which this server stores the kind.
    api_version: String,
    /// The first bytes of JSON values in this version, as kube-apiserver and this server write them.
    heads: Arc<[String]>,
    /// The texts of complete objects.
    texts: Vec<TextSearch>,
}

impl KindUpgrade {
    pub(super) fn new(kind: &'static Kind) -> Self {
        let api_version = match kind.group {
            "" => kind.version.to_owned(),
            group => format!("{group}/{}", kind.version),
        };
        let (of_kind, of_version) =
            (format!("\"kind\":\"{}\"", kind.kind), format!("\"apiVersion\":\"{api_version}\""));
        let heads = Arc::from([format!("{{{of_kind},{of_version}"), format!("{{{of_version},{of_kind}")]);
        let texts = kind.stored_texts.iter().copied().map(TextSearch::new).collect();
        KindUpgrade { kind, api_version, heads, texts }
    }

    /// The JSON values that are read as they are stored.
    pub(super) fn plain_json(&self) -> PlainJson {
        if self.kind.stored_texts.is_empty() { PlainJson::WithHead(Arc::clone(&self.heads)) } else { PlainJson::None }
    }

    /// Upgrades a JSON value. Returns `None` if the value is complete and in the stored version. A value without a kind or
    /// without a version, and a value that is no object, also stay unchanged.
    ///
    /// # Errors
    /// The text of upstream's decoder for a value of another kind, or in an unknown version.
    pub(super) fn upgraded_json(&self, stored: &[u8]) -> Result<Option<Bytes>, String> {
        if self.is_in_stored_version(stored) && !self.lacks_texts(stored) {
            return Ok(None);
        }
        let Ok(tree) = serde_json::from_slice::<Object>(stored) else { return Ok(None) };
        let (api_version, kind) = (text(&tree, "apiVersion").to_owned(), text(&tree, "kind").to_owned());
        if api_version.is_empty() || kind.is_empty() {
            return Ok(None);
        }
        let former = former_versions::find(&api_version, &kind);
        let is_former = former.is_some() || second_version(&tree).is_some();
        let mut tree = to_stored_version(tree, former.as_ref());
        if !self.is_of_kind(&tree) {
            return Err(DecodeError::UnknownKind { api_version, kind }.to_string());
        }
        let was_incomplete = self.kind.complete_stored(&mut tree);
        Ok(if is_former || was_incomplete { self.encoded(&tree).ok() } else { None })
    }

    /// Upgrades the JSON of a decoded protobuf value in a former or second version.
    ///
    /// # Errors
    /// The text of upstream's decoder for a value of another kind.
    pub(super) fn upgraded_version(&self, json: &[u8], former: Option<&FormerVersion>) -> Result<Bytes, String> {
        let tree: Object = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let (api_version, kind) = (text(&tree, "apiVersion").to_owned(), text(&tree, "kind").to_owned());
        let mut tree = to_stored_version(tree, former);
        if !self.is_of_kind(&tree) {
            return Err(DecodeError::UnknownKind { api_version, kind }.to_string());
        }
        self.kind.complete_stored(&mut tree);
        self.encoded(&tree).map_err(|error| error.to_string())
    }

    /// Completes the JSON of a decoded protobuf value in the stored version. The flag is set if the value lacked defaults.
    pub(super) fn completed(&self, json: Vec<u8>) -> Result<(Bytes, bool), serde_json::Error> {
        if self.lacks_texts(&json) {
            let mut tree: Object = serde_json::from_slice(&json)?;
            if self.kind.complete_stored(&mut tree) {
                return Ok((self.encoded(&tree)?, true));
            }
        }
        Ok((self.with_claim_types(json)?, false))
    }

    /// Whether the JSON of an object lacks a text that complete objects have.
    fn lacks_texts(&self, json: &[u8]) -> bool {
        self.texts.iter().any(|text| text.suspects(json))
    }

    fn is_of_kind(&self, tree: &Object) -> bool {
        text(tree, "kind") == self.kind.kind && text(tree, "apiVersion") == self.api_version
    }

    fn is_in_stored_version(&self, stored: &[u8]) -> bool {
        self.heads.iter().any(|head| stored.starts_with(head.as_bytes()))
            || type_of(stored).is_none_or(|(version, kind)| version == self.api_version && kind == self.kind.kind)
    }

    /// Encodes an upgraded object. The members have the order that Go gives them, unless protobuf cannot hold the object.
    fn encoded(&self, tree: &Object) -> Result<Bytes, serde_json::Error> {
        let json = serde_json::to_vec(tree)?;
        let message = protobuf::encode_strict(&self.api_version, self.kind.kind, &json).ok();
        match message.and_then(|message| protobuf::decode(&message).ok()) {
            Some(decoded) => self.with_claim_types(decoded.json),
            None => Ok(json.into()),
        }
    }

    /// Adds `kind`, `apiVersion` and the phase to the claim templates of a decoded StatefulSet. Protobuf does not contain
    /// the first two (`pkg/apis/apps/v1/conversion.go`).
    fn with_claim_types(&self, json: Vec<u8>) -> Result<Bytes, serde_json::Error> {
        if self.kind.kind != "StatefulSet" || memmem::find(&json, b"\"volumeClaimTemplates\":[").is_none() {
            return Ok(json.into());
        }
        let mut set: Object = serde_json::from_slice(&json)?;
        let templates = set.get_mut("spec").and_then(|spec| spec.get_mut("volumeClaimTemplates"));
        for claim in templates.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut) {
            add_phase(claim);
            let mut typed = Object::new();
            typed.insert("kind", json!("PersistentVolumeClaim"));
            typed.insert("apiVersion", json!("v1"));
            typed.append(claim);
            *claim = typed;
        }
        serde_json::to_vec(&set).map(Bytes::from)
    }
}

/// The search of one [`StoredText`]. The searchers are built once, because each decoded object is searched.
#[derive(Debug)]
enum TextSearch {
    Always(Finder<'static>),
    With(Finder<'static>, Finder<'static>),
    Before(Finder<'static>, Finder<'static>),
    Rare(Finder<'static>),
}

impl TextSearch {
    fn new(text: StoredText) -> Self {
        match text {
            StoredText::Always(text) => TextSearch::Always(Finder::new(text)),
            StoredText::With(with, text) => TextSearch::With(Finder::new(with), Finder::new(text)),
            StoredText::Before(text, other) => TextSearch::Before(Finder::new(text), Finder::new(other)),
            StoredText::Rare(text) => TextSearch::Rare(Finder::new(text)),
        }
    }

    /// Whether the JSON of an object differs from that of complete objects.
    fn suspects(&self, json: &[u8]) -> bool {
        match self {
            TextSearch::Always(text) => text.find(json).is_none(),
            // Most objects have the second text, which then takes one search.
            TextSearch::With(with, text) => text.find(json).is_none() && with.find(json).is_some(),
            TextSearch::Before(text, other) => {
                text.find(json).is_some_and(|first| other.find(json).is_some_and(|other| other < first))
            }
            TextSearch::Rare(text) => text.find(json).is_some(),
        }
    }
}

/// The second version in which an object is, if any.
fn second_version(tree: &Object) -> Option<&'static SecondVersion> {
    let (api_version, kind) = (text(tree, "apiVersion"), text(tree, "kind"));
    SECOND_VERSIONS.iter().copied().find(|version| version.kind == kind && version.api_version() == api_version)
}

/// Converts an object to the version in which this server stores it. `former` is the former version of the object. The
/// `apiVersion` of the object may be that of the current version already.
fn to_stored_version(mut tree: Object, former: Option<&FormerVersion>) -> Object {
    if let Some(former) = former {
        (former.convert)(&mut tree);
        tree.insert("apiVersion", Value::from(former.current));
    }
    match second_version(&tree) {
        Some(version) => version.to_storage_version(tree),
        None => tree,
    }
}

/// Returns `apiVersion` and `kind` of a JSON value; `None` if one of them is absent. Builds no tree.
fn type_of(stored: &[u8]) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct TypeMeta<'a> {
        #[serde(borrow)]
        api_version: Cow<'a, str>,
        #[serde(borrow)]
        kind: Cow<'a, str>,
    }
    serde_json::from_slice::<TypeMeta<'_>>(stored).ok().map(|found| (found.api_version, found.kind))
}

fn add_phase(claim: &mut Object) {
    let status = claim.entry("status").or_insert_with(|| json!({}));
    if let Value::Object(status) = status
        && !status.contains_key("phase")
    {
        let mut first = Object::new();
        first.insert("phase", json!("Pending"));
        first.append(status);
        *status = first;
    }
}

/// Moves fields to a new object. `names` lists the old and new names in the order of the new object.
fn renamed(from: &mut Object, names: &[(&str, &str)]) -> Object {
    names.iter().filter_map(|(old, new)| taken(from, old).map(|value| ((*new).to_owned(), value))).collect()
}

/// Removes and returns a field that is not null.
fn taken(from: &mut Object, name: &str) -> Option<Value> {
    from.get_mut(name).map(Value::take).filter(|value| !value.is_null())
}

#[cfg(test)]
#[path = "upgrade_tests.rs"]
mod tests;
