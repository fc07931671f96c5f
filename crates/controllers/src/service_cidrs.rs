//! Updates the ranges from which a server allocates cluster addresses, from the stored ServiceCIDRs.
//!
//! Source: `MetaAllocator` in `pkg/registry/core/service/ipallocator/cidrallocator.go`.

use std::sync::Arc;

use listwatch_meta::{Object, Status};
use listwatch_write::{ServiceCidrs, Writer};

use crate::feed::{self, ObjectCopy};

/// The group, version and plural name of ServiceCIDRs.
pub(crate) const SERVICE_CIDRS: (&str, &str, &str) = ("networking.k8s.io", "v1", "servicecidrs");

/// Updates the ranges of a writer.
struct ServiceCidrCopy<'a>(&'a ServiceCidrs);

impl ObjectCopy for ServiceCidrCopy<'_> {
    fn resource(&self) -> (&'static str, &'static str, &'static str) {
        SERVICE_CIDRS
    }

    fn set(&self, object: &Object) -> bool {
        self.0.set(object.name(), object.json_slice())
    }

    fn remove(&self, _: &str, name: &str) {
        self.0.remove(name);
    }

    fn replace<'a>(&self, objects: &'a [Object]) -> Vec<(&'a str, &'a str)> {
        let unreadable = self.0.replace(objects.iter().map(|object| (object.name(), object.json_slice())));
        unreadable.into_iter().map(|name| ("", name)).collect()
    }
}

/// Lists all ServiceCIDRs. A server calls this before its first allocation.
///
/// # Errors
/// The error of the store, or 504 if the store does not respond in time.
pub async fn load(writer: &Writer) -> Result<(), Status> {
    feed::load(writer, &[ServiceCidrCopy(writer.service_cidrs())], "the ServiceCIDRs").await
}

/// Updates the ranges until the future is dropped. While a watch fails, the last known ranges apply, as in upstream's
/// informers.
pub async fn follow(writer: Arc<Writer>) {
    feed::follow(&writer, &[ServiceCidrCopy(writer.service_cidrs())]).await;
    // The server does not serve ServiceCIDRs. Only the range of the flag is used.
    std::future::pending().await
}
