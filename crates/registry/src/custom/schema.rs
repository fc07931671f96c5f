//! [`Schema`]: the schema of one version of a custom resource, on top of the schema rules in [`listwatch_schema`].

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;
use listwatch_schema::{DefaultsTooLarge, Interner, UpdateReport};
use listwatch_storage::VALUE_BYTES_MAX;

/// The reason why defaults and pruning of an object fail.
#[derive(Debug)]
pub enum DefaultAndPruneError {
    /// An embedded object has invalid metadata.
    Field(FieldError),
    /// The object with its defaults exceeds the size limit of a stored value.
    TooLarge,
}

/// The schema of one version of a custom resource.
///
/// If the definition preserves unknown fields (`spec.preserveUnknownFields`), objects keep unknown fields and nulls.
/// They still get defaults, embedded metadata is still coerced, and objects are validated (`unstructuredSchemaCoercer`
/// of `apiextensions-apiserver/pkg/apiserver/customresource_handler.go`).
#[derive(Debug)]
pub struct Schema {
    schema: listwatch_schema::Schema,
    preserves_unknown_fields: bool,
}

impl Schema {
    /// Parses an `openAPIV3Schema`. Parts shared with other versions are kept in memory once. A schema that cannot
    /// be parsed leaves every object unchanged; validation rejects such schemas before they are stored.
    /// `preserves_unknown_fields` is the flag of the definition.
    pub fn parse(source: &Value, preserves_unknown_fields: bool, shared: &mut Interner) -> Self {
        let schema = listwatch_schema::Schema::parse_shared(source, shared).unwrap_or_else(|error| {
            tracing::warn!(%error, "a stored schema cannot be understood");
            listwatch_schema::Schema::preserving()
        });
        Schema { schema, preserves_unknown_fields }
    }

    /// Sets absent fields to the defaults of the schema. The result may have at most [`VALUE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`DefaultsTooLarge`] if the result is larger. In this case `object` holds some of the defaults.
    pub fn default(&self, object: &mut Map) -> Result<(), DefaultsTooLarge> {
        whole(object, |object| {
            if !self.preserves_unknown_fields {
                self.schema.prune_nulls(object);
            }
            self.schema.default_within(object, VALUE_BYTES_MAX)
        })
    }

    /// Removes fields that the schema does not specify from a stored object.
    pub fn prune(&self, object: &mut Map) {
        whole(object, |object| {
            self.prune_unknown(object);
            // With `true`, invalid metadata is dropped, so this call cannot fail.
            let _ = self.schema.coerce_embedded(object, true);
        });
    }

    /// Removes unknown fields and returns their paths.
    fn prune_unknown(&self, object: &mut Value) -> Vec<String> {
        if self.preserves_unknown_fields { Vec::new() } else { self.schema.prune(object) }
    }

    /// Sets the defaults of an object that a client sent, then prunes unknown fields. Returns the
    /// paths of the pruned fields.
    ///
    /// # Errors
    /// [`DefaultAndPruneError`] if embedded metadata is invalid or the defaults make the object too large.
    pub fn default_and_prune(&self, object: &mut Map) -> Result<Vec<String>, DefaultAndPruneError> {
        self.default(object).map_err(|DefaultsTooLarge| DefaultAndPruneError::TooLarge)?;
        whole(object, |object| {
            let mut unknown = self.prune_unknown(object);
            unknown.extend(self.schema.coerce_embedded(object, false).map_err(DefaultAndPruneError::Field)?);
            Ok(unknown)
        })
    }

    /// Validates a new object and returns the errors.
    pub fn validate(&self, object: &mut Map) -> Vec<FieldError> {
        whole(object, |object| self.schema.validate(object))
    }

    /// Validates an updated object and returns the errors that `old` did not have already.
    pub fn check_update(&self, object: &mut Map, old: &Map) -> UpdateReport {
        let old = Value::Object(old.clone());
        whole(object, |object| self.schema.check_update(object, &old))
    }

    /// Validates an object after a status update and returns the errors that `old` did not have already.
    pub fn check_status_update(&self, object: &mut Map, old: &Map) -> UpdateReport {
        let old = Value::Object(old.clone());
        whole(object, |object| self.schema.check_status_update(object, &old))
    }
}

/// Calls `act` with the object wrapped in a [`Value`].
fn whole<T>(object: &mut Map, act: impl FnOnce(&mut Value) -> T) -> T {
    let mut value = Value::Object(std::mem::take(object));
    let result = act(&mut value);
    if let Value::Object(members) = value {
        *object = members;
    }
    result
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    #[test]
    fn preserved_object_keeps_unknown_fields_and_nulls_but_gets_defaults() {
        let source = json!({"properties": {"a": {"type": "string"}, "b": {"type": "string", "default": "x"},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": {"type": "object"}}}}});
        let sent =
            json!({"a": null, "b": null, "c": {"d": 1}, "pod": {"metadata": {"name": "p", "unknown": 1}, "e": 2}});
        let check = |preserves: bool, expected: Value, unknown: &[&str]| {
            let schema = Schema::parse(&source, preserves, &mut Interner::default());
            let Value::Object(mut object) = sent.clone() else { unreachable!("an object") };
            assert_eq!(schema.default_and_prune(&mut object).unwrap(), unknown);
            assert_eq!(Value::Object(object.clone()), expected);
            schema.prune(&mut object);
            assert_eq!(Value::Object(object), expected, "it is the same after a read");
        };
        let pod = json!({"metadata": {"name": "p"}, "e": 2});
        check(true, json!({"a": null, "b": "x", "c": {"d": 1}, "pod": pod}), &["pod.metadata.unknown"]);
        let pruned = json!({"b": "x", "pod": {"metadata": {"name": "p"}}});
        check(false, pruned, &["c", "pod.e", "pod.metadata.unknown"]);
    }
}
