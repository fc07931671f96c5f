//! The seam between this server and the rules of schemas ([`listwatch_schema`]): [`Schema`], one
//! version's schema.

use listwatch_meta::FieldError;
use listwatch_schema::{DefaultsTooLarge, Interner};
use listwatch_storage::VALUE_BYTES_MAX;
use serde_json::{Map, Value};

/// Why an object does not fit a schema.
#[derive(Debug)]
pub(crate) enum FitError {
    /// The metadata of an embedded object is none.
    Field(FieldError),
    /// With its defaults the object is larger than any store takes it.
    TooLarge,
}

/// The schema of one version of a custom resource.
#[derive(Debug)]
pub(crate) struct Schema(listwatch_schema::Schema);

impl Schema {
    /// Parses an `openAPIV3Schema`; what it shares with other versions is kept once. One that cannot
    /// be parsed, which validation keeps out, leaves every object as it is.
    pub(crate) fn parse(source: &Value, shared: &mut Interner) -> Self {
        Schema(listwatch_schema::Schema::parse_shared(source, shared).unwrap_or_else(|error| {
            tracing::warn!(%error, "a stored schema cannot be understood");
            listwatch_schema::Schema::preserving()
        }))
    }

    /// Fills in what the schema says about absent fields, within [`VALUE_BYTES_MAX`].
    ///
    /// # Errors
    /// When the defaults are larger; `object` then has some of them.
    pub(crate) fn default(&self, object: &mut Map<String, Value>) -> Result<(), DefaultsTooLarge> {
        whole(object, |object| {
            self.0.prune_nulls(object);
            self.0.default_within(object, VALUE_BYTES_MAX)
        })
    }

    /// Removes what the schema does not know, as of an object that comes from the store.
    pub(crate) fn prune(&self, object: &mut Map<String, Value>) {
        whole(object, |object| {
            self.0.prune(object);
            // Nothing is refused when what is wrong is dropped.
            let _ = self.0.coerce_embedded(object, true);
        });
    }

    /// Makes an object that a client sent fit the schema: defaults, then away with what is not known.
    /// Returns the paths of what was removed.
    ///
    /// # Errors
    /// [`FitError`].
    pub(crate) fn fit(&self, object: &mut Map<String, Value>) -> Result<Vec<String>, FitError> {
        self.default(object).map_err(|DefaultsTooLarge| FitError::TooLarge)?;
        whole(object, |object| {
            let mut unknown = self.0.prune(object);
            unknown.extend(self.0.coerce_embedded(object, false).map_err(FitError::Field)?);
            Ok(unknown)
        })
    }

    /// What is wrong with a new object.
    pub(crate) fn validate(&self, object: &mut Map<String, Value>) -> Vec<FieldError> {
        whole(object, |object| self.0.validate(object))
    }

    /// What is wrong with a changed object, apart from what was wrong before.
    pub(crate) fn validate_update(&self, object: &mut Map<String, Value>, old: &Map<String, Value>) -> Vec<FieldError> {
        let old = Value::Object(old.clone());
        whole(object, |object| self.0.validate_update(object, &old))
    }

    /// What is wrong with an object whose status was changed, apart from what was wrong before.
    pub(crate) fn validate_status(&self, object: &mut Map<String, Value>, old: &Map<String, Value>) -> Vec<FieldError> {
        let old = Value::Object(old.clone());
        whole(object, |object| self.0.validate_status_update(object, &old))
    }
}

/// Does something with an object as the value that it is.
fn whole<T>(object: &mut Map<String, Value>, act: impl FnOnce(&mut Value) -> T) -> T {
    let mut value = Value::Object(std::mem::take(object));
    let result = act(&mut value);
    if let Value::Object(members) = value {
        *object = members;
    }
    result
}
