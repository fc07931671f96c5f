//! [`Mutator`] and [`Validator`]: the two stages of a built-in plugin as plain async functions. Both implement the public
//! traits.

use std::future::Future;

use listwatch_meta::Status;
use listwatch_validation::Object;

use super::{AdmissionFuture, AdmissionRequest, MutatingAdmission, ValidatingAdmission};

/// A built-in plugin that changes objects ([`MutatingAdmission`]).
pub(crate) trait Mutator: Send + Sync {
    /// The name of the plugin.
    const NAME: &'static str;

    /// Whether the plugin handles this write.
    fn concerns(request: &AdmissionRequest<'_>) -> bool;

    /// Changes the object.
    fn mutate(
        &self,
        request: &AdmissionRequest<'_>,
        object: &mut Object,
    ) -> impl Future<Output = Result<(), Status>> + Send;
}

/// A built-in plugin that rejects objects ([`ValidatingAdmission`]).
pub(crate) trait Validator: Send + Sync {
    /// The name of the plugin.
    const NAME: &'static str;

    /// Whether the plugin handles this write.
    fn concerns(request: &AdmissionRequest<'_>) -> bool;

    /// Checks the object; an error rejects the write.
    fn check(&self, request: &AdmissionRequest<'_>, object: &Object)
    -> impl Future<Output = Result<(), Status>> + Send;
}

impl<P: Mutator> MutatingAdmission for P {
    fn name(&self) -> &str {
        P::NAME
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        P::concerns(request)
    }

    fn admit<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a mut Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.mutate(request, object))
    }
}

impl<P: Validator> ValidatingAdmission for P {
    fn name(&self) -> &str {
        P::NAME
    }

    fn handles(&self, request: &AdmissionRequest<'_>) -> bool {
        P::concerns(request)
    }

    fn validate<'a>(&'a self, request: &'a AdmissionRequest<'_>, object: &'a Object) -> AdmissionFuture<'a, ()> {
        Box::pin(self.check(request, object))
    }
}
