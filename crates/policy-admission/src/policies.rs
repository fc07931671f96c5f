//! [`AdmissionPolicies`]: the policies of one kind with their bindings, compiled and indexed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use listwatch_policies::{Binding, MutatingPolicy, Policy, PolicyIndex, ValidatingPolicy};
use listwatch_validation::{Object, child, text};
use parking_lot::Mutex;

/// A compiled policy.
pub trait CompiledPolicy: AsRef<Policy> + Send + Sync + Sized {
    /// Compiles a policy that has passed validation.
    fn compile(policy: &Object) -> Self;
}

impl CompiledPolicy for ValidatingPolicy {
    fn compile(policy: &Object) -> Self {
        ValidatingPolicy::parse(policy)
    }
}

impl CompiledPolicy for MutatingPolicy {
    fn compile(policy: &Object) -> Self {
        MutatingPolicy::parse(policy)
    }
}

/// The policies of one kind, and their bindings.
///
/// The caller updates the value when a stored object changes. Each policy is compiled once per change. A request reads
/// one snapshot and does not wait for a lock.
pub struct AdmissionPolicies<P> {
    objects: Mutex<Objects<P>>,
    index: ArcSwap<PolicyIndex<P>>,
}

struct Objects<P> {
    policies: BTreeMap<String, Arc<P>>,
    bindings: BTreeMap<String, Arc<Binding>>,
}

impl<P: CompiledPolicy> Default for AdmissionPolicies<P> {
    fn default() -> Self {
        let objects = Objects { policies: BTreeMap::new(), bindings: BTreeMap::new() };
        AdmissionPolicies { objects: Mutex::new(objects), index: ArcSwap::default() }
    }
}

impl<P> fmt::Debug for AdmissionPolicies<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let objects = self.objects.lock();
        f.debug_struct("AdmissionPolicies")
            .field("policies", &objects.policies.keys())
            .field("bindings", &objects.bindings.keys())
            .finish()
    }
}

/// Parses a stored object. `None` if the bytes are not an object with a name.
fn parse(json: &[u8]) -> Option<(String, Object)> {
    let object: Object = serde_json::from_slice(json).ok()?;
    let name = text(child(&object, "metadata"), "name").to_owned();
    (!name.is_empty()).then_some((name, object))
}

impl<P: CompiledPolicy> AdmissionPolicies<P> {
    /// Adds or replaces a stored policy, given as JSON. Returns false if the object cannot be parsed. The earlier
    /// version of the object then remains.
    pub fn set_policy(&self, json: &[u8]) -> bool {
        let Some((name, policy)) = parse(json) else { return false };
        let policy = Arc::new(P::compile(&policy));
        self.change(|objects| objects.policies.insert(name, policy));
        true
    }

    /// Removes a stored policy.
    pub fn remove_policy(&self, name: &str) {
        self.change(|objects| objects.policies.remove(name));
    }

    /// Replaces all stored policies, given as names and JSON. Returns the names of the objects that cannot be parsed.
    pub fn replace_policies<'a>(&self, policies: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<&'a str> {
        let (policies, unreadable) = parse_all(policies, P::compile);
        self.change(|objects| objects.policies = policies);
        unreadable
    }

    /// Adds or replaces a stored binding, as [`AdmissionPolicies::set_policy`] does for a policy.
    pub fn set_binding(&self, json: &[u8]) -> bool {
        let Some((name, binding)) = parse(json) else { return false };
        let binding = Arc::new(Binding::parse(&binding));
        self.change(|objects| objects.bindings.insert(name, binding));
        true
    }

    /// Removes a stored binding.
    pub fn remove_binding(&self, name: &str) {
        self.change(|objects| objects.bindings.remove(name));
    }

    /// Replaces all stored bindings, given as names and JSON. Returns the names of the objects that cannot be parsed.
    pub fn replace_bindings<'a>(&self, bindings: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<&'a str> {
        let (bindings, unreadable) = parse_all(bindings, Binding::parse);
        self.change(|objects| objects.bindings = bindings);
        unreadable
    }

    /// Returns the current policies and bindings.
    pub(crate) fn snapshot(&self) -> Arc<PolicyIndex<P>> {
        self.index.load_full()
    }

    /// Whether no policy has a binding.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.load().is_empty()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Objects<P>) -> T) {
        let mut objects = self.objects.lock();
        change(&mut objects);
        let index = PolicyIndex::new(objects.policies.values().cloned(), objects.bindings.values().cloned());
        self.index.store(Arc::new(index));
    }
}

/// Parses objects, given as names and JSON. Also returns the names of the objects that cannot be parsed.
fn parse_all<'a, T>(
    objects: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    compile: impl Fn(&Object) -> T,
) -> (BTreeMap<String, Arc<T>>, Vec<&'a str>) {
    let (mut all, mut unreadable) = (BTreeMap::new(), Vec::new());
    for (name, json) in objects {
        match parse(json) {
            Some((name, object)) => {
                all.insert(name, Arc::new(compile(&object)));
            }
            None => unreadable.push(name),
        }
    }
    (all, unreadable)
}

#[cfg(test)]
mod tests {
    use listwatch_json::json;

    use super::*;

    fn object(name: &str, spec: listwatch_json::Value) -> Vec<u8> {
        json!({"metadata": {"name": name}, "spec": spec}).to_string().into_bytes()
    }

    fn bound(policies: &AdmissionPolicies<ValidatingPolicy>) -> Vec<String> {
        let index = policies.snapshot();
        let bound = index.policies().iter().map(|bound| {
            let bindings: Vec<&str> = bound.bindings.iter().map(|binding| binding.name.as_str()).collect();
            format!("{} {}", (*bound.policy).as_ref().name, bindings.join(","))
        });
        bound.collect()
    }

    #[test]
    fn snapshot_contains_only_policies_with_bindings() {
        let all = AdmissionPolicies::<ValidatingPolicy>::default();
        assert!(all.set_policy(&object("p", json!({}))) && all.is_empty());
        assert!(all.set_binding(&object("b", json!({"policyName": "p"}))));
        assert!(all.set_binding(&object("other", json!({"policyName": "q"}))));
        let before = all.snapshot();
        assert_eq!(bound(&all), ["p b"]);
        all.set_binding(&object("other", json!({"policyName": "p"})));
        assert_eq!(bound(&all), ["p b,other"]);
        all.remove_binding("b");
        assert_eq!(bound(&all), ["p other"]);
        assert_eq!(before.policies()[0].bindings.len(), 1, "a request keeps its snapshot");
        let q = object("q", json!({}));
        assert_eq!(all.replace_policies([("q", &q[..]), ("bad", b"[]")]), ["bad"]);
        assert!(all.is_empty());
        let b = object("b", json!({"policyName": "q"}));
        assert_eq!(all.replace_bindings([("b", &b[..])]), Vec::<&str>::new());
        assert_eq!(bound(&all), ["q b"]);
        assert!(!all.set_policy(b"{}") && !all.set_binding(b"1"));
        all.remove_policy("q");
        assert!(all.is_empty());
    }
}
