//! [`Errors`]: the field errors of one object.

use std::ops::{Deref, DerefMut};

use listwatch_meta::FieldError;
use listwatch_schema::limits::FIELD_ERRORS_MAX;

/// What is wrong with an object: [`FIELD_ERRORS_MAX`] errors at most. The object is refused all the
/// same; what is wrong beyond them is left out.
#[derive(Debug, Default)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    /// Adds an error, where there is room for one.
    pub fn push(&mut self, error: FieldError) {
        if self.0.len() < FIELD_ERRORS_MAX {
            self.0.push(error);
        }
    }

    /// Adds errors, as far as there is room.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        let room = FIELD_ERRORS_MAX.saturating_sub(self.0.len());
        self.0.extend(errors.into_iter().take(room));
    }
}

impl Deref for Errors {
    type Target = Vec<FieldError>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Errors {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
