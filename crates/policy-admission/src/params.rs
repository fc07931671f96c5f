//! [`ParamReader`] reads the parameters of policies.

use listwatch_admission::AdmissionFuture;
use listwatch_meta::fuel;
use listwatch_policies::{Binding, ParamKind, ParamQuery, Policy, param_query};
use listwatch_validation::Object;

/// The number of bytes of a parameter per unit of fuel.
const BYTES_PER_UNIT: usize = 64;

/// Reads the parameter objects that bindings refer to.
pub trait ParamReader: Send + Sync {
    /// Whether objects of the kind live in namespaces; `None` if the kind is not served.
    fn is_namespaced(&self, kind: &ParamKind) -> Option<bool>;

    /// The plural name of the resource of the kind; `None` if the kind is not served.
    fn resource(&self, kind: &ParamKind) -> Option<String>;

    /// Reads the objects of a query as JSON, in the version of `kind`. Without a name in the query, reads all objects
    /// of the namespace.
    ///
    /// # Errors
    /// The error of the store, or 504 if the objects cannot be listed in time.
    fn read<'a>(&'a self, kind: &'a ParamKind, query: ParamQuery<'a>) -> AdmissionFuture<'a, Vec<Vec<u8>>>;
}

/// Reads the parameters of a binding. For `None`, the variable `params` is null.
///
/// # Errors
/// The configuration error of the binding.
pub(crate) async fn read_params(
    reader: &dyn ParamReader,
    policy: &Policy,
    binding: &Binding,
    namespaced: bool,
    namespace: &str,
) -> Result<Vec<Option<Object>>, String> {
    let (Some(kind), Some(query)) = (&policy.param_kind, param_query(policy, binding, namespaced, namespace)?) else {
        return Ok(vec![None]);
    };
    let mut found = Vec::new();
    for json in reader.read(kind, query).await.map_err(|status| status.message)? {
        fuel::charge_bytes(json.len(), BYTES_PER_UNIT);
        let object: Object = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
        if query.selects(&object).map_err(|status| status.message)? {
            found.push(Some(object));
        }
    }
    query.check_found(found.len())?;
    Ok(found)
}
