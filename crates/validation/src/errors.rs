//! [`Errors`]: the field errors of one object.

use std::ops::{Deref, DerefMut};

use listwatch_meta::FieldError;
use listwatch_schema::limits::FIELD_ERRORS_MAX;

/// The errors of an object: at most [`FIELD_ERRORS_MAX`]. Further errors are omitted; the object is
/// rejected in any case.
#[derive(Debug, Default)]
pub struct Errors {
    errors: Vec<FieldError>,
    tolerated: Vec<FieldError>,
}

impl Errors {
    /// Adds an error, unless the maximum number of errors is reached.
    pub fn push(&mut self, error: FieldError) {
        if self.errors.len() < FIELD_ERRORS_MAX {
            self.errors.push(error);
        }
    }

    /// Adds errors that do not reject the object, because the old object has them. The client is warned of them.
    pub fn tolerate(&mut self, errors: Vec<FieldError>) {
        self.tolerated.extend(errors);
    }

    /// The errors that do not reject the object.
    pub fn tolerated(&self) -> &[FieldError] {
        &self.tolerated
    }

    /// Adds errors up to the maximum.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        let room = FIELD_ERRORS_MAX.saturating_sub(self.errors.len());
        self.errors.extend(errors.into_iter().take(room));
    }
}

impl Deref for Errors {
    type Target = Vec<FieldError>;

    fn deref(&self) -> &Self::Target {
        &self.errors
    }
}

impl DerefMut for Errors {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.errors
    }
}
