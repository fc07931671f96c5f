//! Compares the index with a naive evaluator over random objects, changes and requests; tables of single rules; the
//! cost of a decision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use listwatch_json::json;
use listwatch_meta::UserInfo;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::policy::{PolicyRule, RoleRef, Subject, SubjectKind};
use super::{RbacAuthorizer, RbacIndex, RbacKind, RbacState};
use crate::authorizer::{Attributes, Authorization, Authorizer as _, Decision};

/// One change of one object.
#[derive(Clone, Debug)]
enum Op {
    SetRole(&'static str, &'static str, Vec<PolicyRule>),
    RemoveRole(&'static str, &'static str),
    SetBinding(&'static str, &'static str, RoleRef, Vec<Subject>),
    RemoveBinding(&'static str, &'static str),
    /// A relist that contains only the objects of one name.
    RetainName(&'static str),
}

/// A request with owned strings.
#[derive(Clone, Debug)]
struct OwnedRequest {
    user: UserInfo,
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    namespace: &'static str,
    name: &'static str,
    /// A non-resource request, if it is not empty.
    path: &'static str,
}

impl OwnedRequest {
    fn attributes(&self) -> Attributes<'_> {
        match self.path {
            "" => Attributes {
                namespace: self.namespace,
                subresource: self.subresource,
                name: self.name,
                ..Attributes::resource(&self.user, self.verb, self.group, self.resource)
            },
            path => Attributes::path(&self.user, self.verb, path),
        }
    }
}

type Objects<T> = BTreeMap<(&'static str, &'static str), T>;

/// Roles and bindings as they are stored, and the decision by visiting all of them.
#[derive(Clone, Debug, Default)]
struct Naive {
    roles: Objects<Vec<PolicyRule>>,
    bindings: Objects<(RoleRef, Vec<Subject>)>,
    /// A planted defect: `pods` also covers `pods/log`.
    resource_covers_subresources: bool,
}

impl Naive {
    fn apply(&mut self, op: Op) {
        match op {
            Op::SetRole(namespace, name, rules) => drop(self.roles.insert((namespace, name), rules)),
            Op::RemoveRole(namespace, name) => drop(self.roles.remove(&(namespace, name))),
            Op::SetBinding(namespace, name, role, subjects) => {
                self.bindings.insert((namespace, name), (role, subjects));
            }
            Op::RemoveBinding(namespace, name) => drop(self.bindings.remove(&(namespace, name))),
            Op::RetainName(kept) => {
                self.roles.retain(|(_, name), _| *name == kept);
                self.bindings.retain(|(_, name), _| *name == kept);
            }
        }
    }

    /// Whether the request is allowed, the reasons that may be given, and the roles that are missing.
    fn decide(&self, ask: &OwnedRequest) -> (bool, BTreeSet<String>, BTreeSet<String>) {
        let (mut reasons, mut missing) = (BTreeSet::new(), BTreeSet::new());
        let namespace = if ask.path.is_empty() { ask.namespace } else { "" };
        for (&(place, name), (role, subjects)) in &self.bindings {
            if !place.is_empty() && place != namespace {
                continue;
            }
            for subject in subjects.iter().filter(|subject| applies(subject, place, &ask.user)) {
                let found = match role.kind.as_str() {
                    "ClusterRole" => self.roles.get(&("", role.name.as_str())).ok_or("clusterrole"),
                    _ => self.roles.get(&(place, role.name.as_str())).ok_or("role"),
                };
                let rules = match found {
                    Ok(rules) => rules,
                    Err(kind) => {
                        missing.insert(format!("{kind}.rbac.authorization.k8s.io \"{}\" not found", role.name));
                        continue;
                    }
                };
                if rules.iter().any(|rule| self.allows(rule, ask)) {
                    let (kind, binding) = match place {
                        "" => ("ClusterRoleBinding", name.to_owned()),
                        place => ("RoleBinding", format!("{name}/{place}")),
                    };
                    let (role_kind, role) = (&role.kind, &role.name);
                    let subject = match subject.kind {
                        SubjectKind::Group => format!("Group \"{}\"", subject.name),
                        SubjectKind::ServiceAccount => {
                            let of = if subject.namespace.is_empty() { place } else { &subject.namespace };
                            format!("ServiceAccount \"{}/{of}\"", subject.name)
                        }
                        _ => format!("User \"{}\"", subject.name),
                    };
                    reasons.insert(format!(
                        "RBAC: allowed by {kind} \"{binding}\" of {role_kind} \"{role}\" to {subject}"
                    ));
                }
            }
        }
        (!reasons.is_empty(), reasons, missing)
    }

    fn allows(&self, rule: &PolicyRule, ask: &OwnedRequest) -> bool {
        let has = |list: &[String], text: &str| list.contains(&"*".to_owned()) || list.contains(&text.to_owned());
        if !has(&rule.verbs, ask.verb) {
            return false;
        }
        if !ask.path.is_empty() {
            return rule.non_resource_urls.iter().any(|url| match url.find('*') {
                Some(at) => ask.path.starts_with(&url[..at]),
                None => ask.path == url,
            });
        }
        let (resource, subresource) = (ask.resource, ask.subresource);
        let mut forms = vec!["*".to_owned()];
        if subresource.is_empty() || self.resource_covers_subresources {
            forms.push(resource.to_owned());
        }
        if !subresource.is_empty() {
            forms.extend([format!("{resource}/{subresource}"), format!("*/{subresource}")]);
        }
        has(&rule.api_groups, ask.group)
            && rule.resources.iter().any(|one| forms.contains(one))
            && (rule.resource_names.is_empty() || rule.resource_names.iter().any(|name| name == ask.name))
    }
}

fn applies(subject: &Subject, place: &str, user: &UserInfo) -> bool {
    match subject.kind {
        SubjectKind::User => user.username == subject.name,
        SubjectKind::Group => user.groups.contains(&subject.name),
        SubjectKind::ServiceAccount => {
            let namespace = if subject.namespace.is_empty() { place } else { &subject.namespace };
            !namespace.is_empty() && user.username == format!("system:serviceaccount:{namespace}:{}", subject.name)
        }
        SubjectKind::Other => false,
    }
}

fn apply(index: &mut RbacIndex, op: Op) {
    match op {
        Op::SetRole(namespace, name, rules) => index.set_role(namespace, name, rules),
        Op::RemoveRole(namespace, name) => index.remove_role(namespace, name),
        Op::SetBinding(namespace, name, role, subjects) => index.set_binding(namespace, name, role, subjects),
        Op::RemoveBinding(namespace, name) => index.remove_binding(namespace, name),
        Op::RetainName(kept) => {
            index.retain_roles(|_, name| name == kept);
            index.retain_bindings(|_, name| name == kept);
        }
    }
}

/// The first difference between the index and the naive evaluator.
fn difference(naive: &Naive, index: &RbacIndex, ask: &OwnedRequest) -> Option<String> {
    let (allowed, reasons, missing) = naive.decide(ask);
    let Authorization { decision, reason, .. } = index.authorize(&ask.attributes());
    let same = match decision {
        Decision::Allow => allowed && reasons.contains(&*reason),
        Decision::NoOpinion if allowed => false,
        Decision::NoOpinion => match missing.len() {
            0 => reason.is_empty(),
            1 => *reason == *format!("RBAC: {}", missing.first().unwrap()),
            _ => {
                let listed = reason.strip_prefix("RBAC: [").and_then(|rest| rest.strip_suffix(']'));
                listed.is_some_and(|list| list.split(", ").map(str::to_owned).collect::<BTreeSet<_>>() == missing)
            }
        },
        Decision::Deny => false,
    };
    (!same)
        .then(|| format!("{ask:?}: index says {decision:?} {reason:?}, naive says {allowed} {reasons:?} {missing:?}"))
}

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = &'static str> + Clone {
    prop::sample::select(texts)
}

fn some_of(texts: &'static [&'static str], max: usize) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(one_of(texts).prop_map(str::to_owned), 0..=max)
}

const PLACES: &[&str] = &["", "a", "b"];
const NAMES: &[&str] = &["r", "s", "t"];

fn rule() -> impl Strategy<Value = PolicyRule> {
    let resources = some_of(&["pods", "pods/log", "*/log", "*", "services", "*/scale"], 2);
    let lists = (
        some_of(&["get", "list", "create", "*"], 2),
        some_of(&["", "apps", "*"], 2),
        resources,
        some_of(&["x", "y"], 1),
        some_of(&["/a", "/a/*", "*", "/b*"], 1),
    );
    lists.prop_map(|(verbs, api_groups, resources, resource_names, non_resource_urls)| PolicyRule {
        verbs,
        api_groups,
        resources,
        resource_names,
        non_resource_urls,
    })
}

fn subject() -> impl Strategy<Value = Subject> {
    const KINDS: &[SubjectKind] =
        &[SubjectKind::User, SubjectKind::Group, SubjectKind::ServiceAccount, SubjectKind::Other];
    let parts = (prop::sample::select(KINDS), one_of(&["u", "v", "g"]), one_of(PLACES));
    parts.prop_map(|(kind, name, namespace)| Subject { kind, name: name.to_owned(), namespace: namespace.to_owned() })
}

fn op() -> impl Strategy<Value = Op> {
    let place = || (one_of(PLACES), one_of(NAMES));
    let set_role = (place(), prop::collection::vec(rule(), 0..4));
    let binding = (place(), prop::bool::ANY, one_of(NAMES), prop::collection::vec(subject(), 0..4));
    prop_oneof![
        5 => set_role.prop_map(|((namespace, name), rules)| Op::SetRole(namespace, name, rules)),
        2 => place().prop_map(|(namespace, name)| Op::RemoveRole(namespace, name)),
        6 => binding.prop_map(|((namespace, name), in_cluster, role, subjects)| {
            let kind = if in_cluster || namespace.is_empty() { "ClusterRole" } else { "Role" };
            Op::SetBinding(namespace, name, RoleRef { kind: kind.to_owned(), name: role.to_owned() }, subjects)
        }),
        2 => place().prop_map(|(namespace, name)| Op::RemoveBinding(namespace, name)),
        1 => one_of(NAMES).prop_map(Op::RetainName),
    ]
}

fn ask() -> impl Strategy<Value = OwnedRequest> {
    let users =
        one_of(&["u", "v", "system:serviceaccount:a:u", "system:serviceaccount:b:v", "system:serviceaccount::u"]);
    let request = (
        one_of(&["get", "list", "create", "*"]),
        one_of(&["", "apps"]),
        one_of(&["pods", "services", "*"]),
        one_of(&["", "", "log", "scale"]),
        one_of(PLACES),
        one_of(&["", "x", "y"]),
        one_of(&["", "", "", "/a", "/a/b", "/bc", "/c"]),
    );
    (users, some_of(&["u", "g"], 2), request).prop_map(|(username, groups, request)| {
        let (verb, group, resource, subresource, namespace, name, path) = request;
        let user = UserInfo { username: username.to_owned(), groups, ..UserInfo::default() };
        OwnedRequest { user, verb, group, resource, subresource, namespace, name, path }
    })
}

fn case() -> impl Strategy<Value = (Vec<Op>, Vec<OwnedRequest>)> {
    (prop::collection::vec(op(), 0..30), prop::collection::vec(ask(), 1..20))
}

/// Applies the changes to both evaluators, and compares them after each change.
fn compare(mut naive: Naive, ops: Vec<Op>, asks: &[OwnedRequest]) -> Option<String> {
    let mut index = RbacIndex::default();
    for op in ops {
        naive.apply(op.clone());
        apply(&mut index, op);
        if let Some(difference) = asks.iter().find_map(|ask| difference(&naive, &index, ask)) {
            return Some(difference);
        }
    }
    // Without objects, the index holds nothing.
    index.retain_roles(|_, _| false);
    index.retain_bindings(|_, _| false);
    (!index.is_empty()).then(|| format!("the index keeps entries of removed objects: {index:?}"))
}

#[test]
fn repeated_subject_of_a_binding_has_one_grant() {
    let subject = Subject { kind: SubjectKind::User, name: "u".to_owned(), namespace: String::new() };
    let role_ref = RoleRef { kind: "ClusterRole".to_owned(), name: "view".to_owned() };
    let mut index = RbacIndex::default();
    index.set_binding("a", "b", role_ref, vec![subject; 1000]);
    assert_eq!(index.grants_count(), 1);
    index.remove_binding("a", "b");
    assert!(index.is_empty(), "{index:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn index_decides_as_a_naive_evaluator_after_each_change((ops, asks) in case()) {
        let difference = compare(Naive::default(), ops, &asks);
        prop_assert!(difference.is_none(), "granted: {}", difference.unwrap_or_default());
    }
}

#[test]
fn comparison_with_a_faulty_naive_evaluator_finds_a_difference() {
    let mut runner = TestRunner::deterministic();
    let found = (0..2000).any(|_| {
        let (ops, asks) = case().new_tree(&mut runner).unwrap().current();
        let planted = Naive { resource_covers_subresources: true, ..Naive::default() };
        compare(planted, ops, &asks).is_some()
    });
    assert!(found, "the property test cannot fail");
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        username: name.to_owned(),
        groups: groups.iter().map(|&group| group.to_owned()).collect(),
        ..UserInfo::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { kind: kind.to_owned(), name: name.to_owned() }
}

fn subject_of(kind: SubjectKind, name: &str) -> Subject {
    Subject { kind, name: name.to_owned(), namespace: String::new() }
}

#[test]
fn rbac_reasons_have_upstreams_texts() {
    let mut index = RbacIndex::default();
    let reader = || vec![PolicyRule::resources(&["get"], &[""], &["pods"])];
    index.set_role("", "reader", reader());
    index.set_role("a", "reader", reader());
    index.set_binding("", "b", role_ref("ClusterRole", "reader"), vec![subject_of(SubjectKind::User, "z")]);
    index.set_binding("a", "b", role_ref("Role", "reader"), vec![subject_of(SubjectKind::ServiceAccount, "sa")]);
    index.set_binding("a", "c", role_ref("ClusterRole", "reader"), vec![subject_of(SubjectKind::Group, "dev")]);
    index.set_binding("a", "gone", role_ref("Role", "x"), vec![subject_of(SubjectKind::User, "half")]);
    index.set_binding("", "gone", role_ref("ClusterRole", "x"), vec![subject_of(SubjectKind::User, "half")]);
    index.set_binding("", "odd", role_ref("Role", "reader"), vec![subject_of(SubjectKind::User, "odd")]);
    for (name, groups, namespace, expected) in [
        ("z", &[][..], "", "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"reader\" to User \"z\""),
        (
            "system:serviceaccount:a:sa",
            &[],
            "a",
            "RBAC: allowed by RoleBinding \"b/a\" of Role \"reader\" to ServiceAccount \"sa/a\"",
        ),
        ("y", &["dev"], "a", "RBAC: allowed by RoleBinding \"c/a\" of ClusterRole \"reader\" to Group \"dev\""),
        ("y", &["dev"], "b", ""),
        (
            "half",
            &[],
            "a",
            "RBAC: [clusterrole.rbac.authorization.k8s.io \"x\" not found, role.rbac.authorization.k8s.io \"x\" not found]",
        ),
        ("half", &[], "", "RBAC: clusterrole.rbac.authorization.k8s.io \"x\" not found"),
        ("odd", &[], "", "RBAC: unsupported role reference kind: \"Role\""),
    ] {
        let user = user(name, groups);
        let attributes = Attributes { namespace, ..Attributes::resource(&user, "get", "", "pods") };
        assert_eq!(index.authorize(&attributes).reason, expected, "{name} in {namespace:?}");
    }
}

#[test]
fn authorizer_denies_before_all_kinds_are_listed() {
    let state = RbacState::default();
    let role = br#"{"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}"#;
    let binding = br#"{"roleRef":{"kind":"ClusterRole","name":"all"},"subjects":[{"kind":"User","name":"u"}]}"#;
    let user = user("u", &[]);
    let attributes = Attributes::resource(&user, "get", "", "pods");
    for kind in RbacKind::ALL {
        let found = state.authorize(&attributes);
        assert_eq!((found.is_allowed(), &*found.reason), (false, "RBAC: the roles and bindings are not known yet"));
        match kind {
            RbacKind::ClusterRole => assert!(state.replace(kind, [("", "all", &role[..])]).is_empty()),
            RbacKind::ClusterRoleBinding => assert!(state.replace(kind, [("", "b", &binding[..])]).is_empty()),
            _ => assert!(state.replace(kind, []).is_empty()),
        }
    }
    assert!(state.authorize(&attributes).is_allowed());
    // A relist of another kind does not remove them; a relist without them does.
    state.replace(RbacKind::RoleBinding, []);
    state.replace(RbacKind::Role, []);
    assert!(state.authorize(&attributes).is_allowed());
    state.replace(RbacKind::ClusterRoleBinding, []);
    assert!(!state.authorize(&attributes).is_allowed());
}

#[test]
fn unreadable_rbac_object_grants_nothing() {
    let state = RbacState::default();
    let role = br#"{"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}"#;
    let binding = br#"{"roleRef":{"kind":"ClusterRole","name":"all"},"subjects":[{"kind":"User","name":"u"}]}"#;
    for kind in RbacKind::ALL {
        state.replace(kind, []);
    }
    state.set(RbacKind::ClusterRole, "", "all", role).unwrap();
    state.set(RbacKind::ClusterRoleBinding, "", "b", binding).unwrap();
    let user = user("u", &[]);
    let attributes = Attributes::resource(&user, "get", "", "pods");
    assert!(state.authorize(&attributes).is_allowed());
    state.set(RbacKind::ClusterRole, "", "all", br#"{"rules":[{"verbs":7}]}"#).unwrap_err();
    assert_eq!(state.authorize(&attributes).reason, "RBAC: clusterrole.rbac.authorization.k8s.io \"all\" not found");
    state.set(RbacKind::ClusterRole, "", "all", role).unwrap();
    let unreadable = state.replace(RbacKind::ClusterRoleBinding, [("", "b", &b"{\"subjects\":1}"[..])]);
    assert_eq!(unreadable, [("", "b")]);
    assert!(!state.authorize(&attributes).is_allowed());
}

#[test]
fn null_lists_and_unknown_subjects_are_decoded_as_in_go() {
    let state = RbacState::default();
    state.set(RbacKind::Role, "a", "r", br#"{"rules":null}"#).unwrap();
    state
        .set(RbacKind::Role, "a", "s", br#"{"rules":[{"verbs":["get"],"apiGroups":null,"resources":["pods"]}]}"#)
        .unwrap();
    let binding = br#"{"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"s"},"subjects":[{"kind":"Robot","name":"u"},{"kind":"ServiceAccount","name":"d","namespace":null}]}"#;
    state.set(RbacKind::RoleBinding, "a", "b", binding).unwrap();
    let account = user("system:serviceaccount:a:d", &[]);
    assert_eq!(state.rules_for(&account, "a").rules().count(), 1);
    assert!(state.rules_for(&account, "b").rules().next().is_none());
    assert!(state.rules_for(&user("u", &[]), "a").rules().next().is_none());
}

#[test]
fn missing_rbac_permissions_are_named_with_upstreams_text() {
    let state = RbacState::default();
    let bob = user("bob", &["dev", "system:authenticated"]);
    let wanted =
        [PolicyRule::resources(&["get", "list"], &["apps"], &["deployments"]), PolicyRule::paths(&["get"], &["/x"])];
    let binding = br#"{"roleRef":{"kind":"ClusterRole","name":"gone"},"subjects":[{"kind":"Group","name":"dev"}]}"#;
    state.set(RbacKind::ClusterRoleBinding, "", "b", binding).unwrap();
    assert_eq!(
        state.confirm_no_escalation(&bob, "a", &wanted).unwrap_err(),
        "user \"bob\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"apps\"], Resources:[\"deployments\"], Verbs:[\"get\" \"list\"]}\n\
         {NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}; resolution errors: [clusterrole.rbac.authorization.k8s.io \"gone\" not found]"
    );
    let role = br#"{"rules":[{"verbs":["*"],"apiGroups":["apps"],"resources":["*"]},{"verbs":["get"],"nonResourceURLs":["/*"]}]}"#;
    state.set(RbacKind::ClusterRole, "", "gone", role).unwrap();
    assert_eq!(state.confirm_no_escalation(&bob, "a", &wanted), Ok(()));
}

/// A state in which the user `u` has 100 roles, each with a rule for 2,000 names.
fn state_with_long_rules() -> RbacState {
    let state = RbacState::default();
    let names: Vec<String> = (0..2_000).map(|number| format!("name-of-an-object-{number}")).collect();
    for number in 0..100 {
        let name = format!("r{number}");
        let rules = json!([{"verbs": ["get"], "apiGroups": [name], "resources": ["pods"], "resourceNames": names}]);
        let subjects = json!([{"kind": "User", "name": "u"}]);
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects});
        state.set(RbacKind::ClusterRole, "", &name, json!({"rules": rules}).to_string().as_bytes()).unwrap();
        state.set(RbacKind::ClusterRoleBinding, "", &name, binding.to_string().as_bytes()).unwrap();
    }
    state
}

#[tokio::test]
async fn rules_of_a_user_are_listed_up_to_the_size_limit() {
    let authorizer = RbacAuthorizer::new(Arc::new(state_with_long_rules()));
    let rules = authorizer.rules(&user("u", &[]), "a").await;
    let bytes = serde_json::to_vec(&rules).unwrap().len();
    assert!(bytes < 5 << 20, "a review has {bytes} bytes");
    assert!(rules.incomplete && rules.resource_rules.len() > 50, "{} rules", rules.resource_rules.len());
    assert_eq!(rules.evaluation_error, "the user has too many rules to list all of them");
}

#[test]
fn role_change_during_a_relist_of_bindings_is_not_lost() {
    let state = RbacState::default();
    RbacKind::ALL.iter().for_each(|kind| drop(state.replace(*kind, [])));
    let role: &[u8] = br#"{"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}"#;
    let names: Vec<String> = (0..300).map(|number| format!("n{number}")).collect();
    let binding = |name: &String| {
        let subjects = json!([{"kind": "User", "name": name}]);
        json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects}).to_string()
    };
    let bindings: Vec<String> = names.iter().map(binding).collect();
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            names.iter().for_each(|name| state.set(RbacKind::ClusterRole, "", name, role).unwrap());
        });
        loop {
            let are_all_made = changes.is_finished();
            let objects = names.iter().zip(&bindings).map(|(name, json)| ("", name.as_str(), json.as_bytes()));
            assert!(state.replace(RbacKind::ClusterRoleBinding, objects).is_empty());
            if are_all_made {
                break;
            }
        }
    });
    for name in &names {
        let user = user(name, &[]);
        assert!(state.authorize(&Attributes::resource(&user, "get", "", "pods")).is_allowed(), "{name}");
    }
}

#[test]
fn rbac_wildcards_match_only_where_upstream_allows_them() {
    let bob = user("bob", &[]);
    let pods = Attributes { name: "x", ..Attributes::resource(&bob, "get", "apps.example.com", "pods") };
    let log = Attributes { subresource: "log", ..pods };
    let create = Attributes { verb: "create", name: "", ..pods };
    let path = Attributes::path(&bob, "get", "/api/v1");
    let star = &["*"][..];
    let named = |names: &[&str]| PolicyRule {
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..PolicyRule::resources(star, star, star)
    };
    for (rule, attributes, expected) in [
        (PolicyRule::resources(star, star, star), pods, true),
        (PolicyRule::resources(star, star, star), log, true),
        (PolicyRule::resources(star, star, star), path, false),
        (PolicyRule::resources(&["get*"], star, star), pods, false),
        (PolicyRule::resources(&["g*", "**"], star, star), pods, false),
        (PolicyRule::resources(star, &["*.example.com"], star), pods, false),
        (PolicyRule::resources(star, &["apps.*"], star), pods, false),
        (PolicyRule::resources(star, &[""], star), pods, false),
        (PolicyRule::resources(star, star, &["pod*"]), pods, false),
        (PolicyRule::resources(star, star, &["*/*"]), pods, false),
        (PolicyRule::resources(star, star, &["*/*"]), log, false),
        (PolicyRule::resources(star, star, &["pods/*"]), log, false),
        (PolicyRule::resources(star, star, &["*/log"]), log, true),
        (PolicyRule::resources(star, star, &["*/log"]), pods, false),
        (PolicyRule::resources(star, star, &["*/lo*"]), log, false),
        (PolicyRule::resources(star, star, &["pods/", "/log", "pods//log"]), log, false),
        (named(&["*"]), pods, false),
        (named(&["x*"]), pods, false),
        (named(&[""]), pods, false),
        (named(&["x"]), pods, true),
        // A request without a name has the empty name.
        (named(&[""]), create, true),
        (named(&["*"]), create, false),
        (PolicyRule::paths(star, star), path, true),
        (PolicyRule::paths(star, star), pods, false),
        (PolicyRule::paths(&["get"], &["/api/*"]), path, true),
        (PolicyRule::paths(&["get"], &["/api**"]), path, true),
        (PolicyRule::paths(&["get"], &["/*/v1"]), path, false),
        (PolicyRule::paths(&["get"], &["*/v1"]), path, false),
        (PolicyRule::paths(&["g*"], star), path, false),
    ] {
        let mut index = RbacIndex::default();
        index.set_role("", "r", vec![rule.clone()]);
        index.set_binding("", "b", role_ref("ClusterRole", "r"), vec![subject_of(SubjectKind::User, "bob")]);
        assert_eq!(index.authorize(&attributes).is_allowed(), expected, "{rule:?} {attributes:?}");
        assert_eq!(rule.allows(&attributes), expected, "{rule:?} {attributes:?}");
    }
    // A subject is compared as it is.
    for (kind, name) in [(SubjectKind::User, "*"), (SubjectKind::Group, "*"), (SubjectKind::User, "bo*")] {
        let mut index = RbacIndex::default();
        index.set_role("", "r", vec![PolicyRule::resources(star, star, star)]);
        index.set_binding("", "b", role_ref("ClusterRole", "r"), vec![subject_of(kind, name)]);
        index.set_binding("*", "b", role_ref("ClusterRole", "r"), vec![subject_of(SubjectKind::User, "bob")]);
        index.set_binding("a", "b", role_ref("ClusterRole", "*"), vec![subject_of(SubjectKind::User, "bob")]);
        let in_a = Attributes { namespace: "a", ..pods };
        assert!(!index.authorize(&in_a).is_allowed(), "{kind:?} {name}");
    }
}
