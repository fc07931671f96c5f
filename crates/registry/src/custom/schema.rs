//! [`Schema`]: the schema of one version of a custom resource, on top of the schema rules in [`listwatch_schema`].

use listwatch_json::{Map, Value};
use listwatch_meta::FieldError;
use listwatch_schema::{DefaultsTooLarge, Interner};
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
#[derive(Debug)]
pub struct Schema(listwatch_schema::Schema);

impl Schema {
    /// Parses an `openAPIV3Schema`. Parts shared with other versions are kept in memory once. A schema that cannot
    /// be parsed leaves every object unchanged; validation rejects such schemas before they are stored.
    pub fn parse(source: &Value, shared: &mut Interner) -> Self {
        Schema(listwatch_schema::Schema::parse_shared(source, shared).unwrap_or_else(|error| {
            tracing::warn!(%error, "a stored schema cannot be understood");
            listwatch_schema::Schema::preserving()
        }))
    }

    /// Sets absent fields to the defaults of the schema. The result may have at most [`VALUE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`DefaultsTooLarge`] if the result is larger. In this case `object` holds some of the defaults.
    pub fn default(&self, object: &mut Map) -> Result<(), DefaultsTooLarge> {
        whole(object, |object| {
            self.0.prune_nulls(object);
            self.0.default_within(object, VALUE_BYTES_MAX)
        })
    }

    /// Removes fields that the schema does not specify from a stored object.
    pub fn prune(&self, object: &mut Map) {
        whole(object, |object| {
            self.0.prune(object);
            // With `true`, invalid metadata is dropped, so this call cannot fail.
            let _ = self.0.coerce_embedded(object, true);
        });
    }

    /// Sets the defaults of an object that a client sent, then prunes unknown fields. Returns the
    /// paths of the pruned fields.
    ///
    /// # Errors
    /// [`DefaultAndPruneError`] if embedded metadata is invalid or the defaults make the object too large.
    pub fn default_and_prune(&self, object: &mut Map) -> Result<Vec<String>, DefaultAndPruneError> {
        self.default(object).map_err(|DefaultsTooLarge| DefaultAndPruneError::TooLarge)?;
        whole(object, |object| {
            let mut unknown = self.0.prune(object);
            unknown.extend(self.0.coerce_embedded(object, false).map_err(DefaultAndPruneError::Field)?);
            Ok(unknown)
        })
    }

    /// Validates a new object and returns the errors.
    pub fn validate(&self, object: &mut Map) -> Vec<FieldError> {
        whole(object, |object| self.0.validate(object))
    }

    /// Validates an updated object and returns the errors that `old` did not have already.
    pub fn validate_update(&self, object: &mut Map, old: &Map) -> Vec<FieldError> {
        let old = Value::Object(old.clone());
        whole(object, |object| self.0.validate_update(object, &old))
    }

    /// Validates an object after a status update and returns the errors that `old` did not have already.
    pub fn validate_status(&self, object: &mut Map, old: &Map) -> Vec<FieldError> {
        let old = Value::Object(old.clone());
        whole(object, |object| self.0.validate_status_update(object, &old))
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
