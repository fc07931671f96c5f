//! Objects for the tests of this crate.

use listwatch_client::{Decode as _, KeepJson, Object, ObjectKey, RawObject};

/// A ConfigMap in the namespace `default`.
pub(crate) fn object(name: &str, version: &str) -> Object {
    let json = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"namespace":"default","name":"{name}","uid":"u","resourceVersion":"{version}"}}}}"#
    );
    let raw = RawObject::new(json.into()).expect("it is JSON");
    KeepJson.decode(&raw, ObjectKey::new("default", name), None).expect("bytes are kept as they are")
}
