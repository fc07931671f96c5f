//! The rules by path: forbidden words of modules, the maximum size of files and crates, and unique numbers of
//! decisions. `tidy.rs` checks the dependencies between crates in their manifests.

use std::collections::BTreeMap;

/// Pure modules, which take inputs and the time and return results. These modules use no runtime, lock or clock. A path
/// that ends in `/` is a folder.
const PURE: &[&str] = &[
    "crates/access/src/admin.rs",
    "crates/access/src/authenticator.rs",
    "crates/access/src/authorizer.rs",
    "crates/access/src/impersonation.rs",
    "crates/access/src/known_users.rs",
    "crates/access/src/oidc/claims.rs",
    "crates/access/src/oidc/config.rs",
    "crates/access/src/oidc/keys.rs",
    "crates/access/src/rbac/covers.rs",
    "crates/access/src/rbac/index.rs",
    "crates/access/src/rbac/policy.rs",
    "crates/access/src/rbac/role_rules.rs",
    "crates/access/src/rules.rs",
    "crates/access/src/webhook/cache.rs",
    "crates/aggregator/src/api_service.rs",
    "crates/aggregator/src/availability.rs",
    "crates/aggregator/src/condition.rs",
    "crates/aggregator/src/discovery.rs",
    "crates/aggregator/src/documents.rs",
    "crates/aggregator/src/identity.rs",
    "crates/aggregator/src/openapi.rs",
    "crates/aggregator/src/order.rs",
    "crates/aggregator/src/resolve.rs",
    "crates/apiextensions/src/",
    "crates/apiserver/src/request/info.rs",
    "crates/apiserver/src/request/routing.rs",
    "crates/apply/src/",
    "crates/at-rest/src/",
    "crates/audit/src/batch.rs",
    "crates/audit/src/event.rs",
    "crates/audit/src/payload.rs",
    "crates/audit/src/policy.rs",
    "crates/audit/src/rotation.rs",
    "crates/cacher/src/bookmark.rs",
    "crates/cacher/src/cache.rs",
    "crates/cacher/src/history.rs",
    "crates/cacher/src/hub.rs",
    "crates/cacher/src/watcher.rs",
    "crates/cel/src/",
    "crates/client/src/delta_fifo/",
    "crates/client/src/informer/merge.rs",
    "crates/client/src/informer/view.rs",
    "crates/client/src/reflector.rs",
    "crates/client/src/reflector/",
    "crates/work-queue/src/work_queue_core.rs",
    "crates/work-queue/src/ready.rs",
    "crates/conformance/src/report/",
    "crates/conformance/src/suite/",
    "crates/conformance/src/value/",
    "crates/connect/src/",
    "crates/controllers/src/gc/work_queue.rs",
    "crates/controllers/src/gc/facts.rs",
    "crates/controllers/src/gc/graph.rs",
    "crates/controllers/src/gc/unreadable.rs",
    "crates/controllers/src/health.rs",
    "crates/discovery/src/",
    "crates/flow-control/src/",
    "crates/json/src/",
    "crates/k8s-types/src/",
    "crates/kind-warnings/src/",
    "crates/kinds/src/",
    "crates/printers/src/",
    "crates/meta/src/",
    "crates/outbound/src/backoff.rs",
    "crates/outbound/src/kubeconfig.rs",
    "crates/pod-rules/src/",
    "crates/policies/src/",
    "crates/proxy/src/error.rs",
    "crates/proxy/src/headers.rs",
    "crates/registry/src/builtin.rs",
    "crates/registry/src/cache_budget.rs",
    "crates/registry/src/conversion/second_version.rs",
    "crates/registry/src/custom/catalog.rs",
    "crates/registry/src/custom/resources.rs",
    "crates/registry/src/registry.rs",
    "crates/registry/src/resource.rs",
    "crates/schema/src/",
    "crates/storage/src/embedded/plan.rs",
    "crates/storage/src/embedded/recent.rs",
    "crates/storage/src/embedded/record.rs",
    "crates/storage/src/etcd3/pager.rs",
    "crates/storage/src/mvcc.rs",
    "crates/storage/src/retention.rs",
    "crates/storage/src/ttl.rs",
    "crates/table/src/",
    "crates/validation/src/",
    "crates/webhooks/src/",
    "crates/wire/src/",
    "crates/write/src/address_repair/plan.rs",
    "crates/write/src/decode.rs",
    "crates/write/src/depth.rs",
    "crates/write/src/document.rs",
    "crates/write/src/json_patch.rs",
    "crates/write/src/memory.rs",
    "crates/write/src/merge_keys.rs",
    "crates/write/src/options.rs",
    "crates/write/src/ownership.rs",
    "crates/write/src/patch.rs",
    "crates/write/src/service_ranges.rs",
    "crates/write/src/strategic.rs",
    "crates/write/src/strict_order.rs",
    "crates/write/src/typed.rs",
    "crates/write/src/yaml_reader.rs",
];

/// The words that a pure module must not use.
const IMPURE: &[&str] = &[
    "tokio",
    "parking_lot",
    "Mutex",
    "RwLock",
    "Instant::now",
    "SystemTime::now",
    "UNIX_EPOCH.elapsed",
    "OffsetDateTime::now_utc",
];

/// Exceptions: pure modules that use one of [`IMPURE`], as path, word and reason.
const EXEMPT: &[(&str, &str, &str)] = &[
    ("crates/cel/src/pattern.rs", "Instant::now", "fuel is charged by the time of a compilation"),
    ("crates/client/src/reflector/server_memory.rs", "Mutex", "reflectors of one server share it"),
    ("crates/meta/src/fuel.rs", "Instant::now", "fuel ends at the deadline of a request"),
    ("crates/validation/src/clock.rs", "OffsetDateTime::now_utc", "the clock that others are given"),
];

/// The paths that may use the `http` crate. A path that ends in `/*` means the files of a folder, without those of its
/// subfolders.
const HTTP: &[&str] = &[
    "crates/access/src/",
    "crates/aggregator/src/aggregator.rs",
    "crates/aggregator/src/fetch.rs",
    "crates/aggregator/src/identity.rs",
    "crates/apiserver/src/*",
    "crates/apiserver/src/aggregation/",
    "crates/apiextensions/src/approval.rs", // parses a URI
    "crates/apiserver/src/filters/",
    "crates/apiserver/src/flow_control/",
    "crates/apiserver/src/handlers/",
    "crates/apiserver/src/request/",
    "crates/apiserver/src/response/",
    "crates/apiserver/src/transport/",
    "crates/client/src/client.rs",
    "crates/client/src/config/",
    "crates/client/src/credentials.rs",
    "crates/client/src/transport/",
    "crates/conformance/src/run/",
    "crates/conformance/src/transport/",
    "crates/grpc/src/",
    "crates/outbound/src/client.rs",
    "crates/outbound/src/token_file.rs",
    "crates/proxy/src/",
    "crates/sim/src/",
    "crates/webhook-admission/src/https.rs",
];

/// The modules of `apiserver` by layer, the lowest first. A module uses only modules of lower layers, so that no cycles
/// exist.
const LAYERS: &[&[&str]] = &[
    &["audit", "auth", "connections", "request", "store_health", "webhook_client"],
    &["compute", "flow_control"],
    &["metrics", "response"],
    &["documents"],
    &["aggregation"],
    &["filters", "shared"],
    &["handlers"],
    &["chain"],
    &["service"],
    &["server"],
    &["transport"],
    &["builder"],
];

/// The maximum length of a source file, in lines.
const FILE_LINES_MAX: usize = 900;

/// Exceptions: longer files, with their maximum length. Numbers may only decrease.
const LONG_FILES: &[(&str, usize)] = &[];

/// Generated sources, which have no limit.
const GENERATED: &[&str] = &["crates/k8s-types/src/table.rs"];

/// The maximum size of a crate, in lines without tests.
const CRATE_LINES_MAX: usize = 15_000;

/// Exceptions: larger crates, with their maximum size. Numbers may only decrease.
const LARGE_CRATES: &[(&str, usize)] = &[];

/// Applies every wall to the tree: path from the root, and text.
pub(super) fn check(files: &[(String, String)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
    let test_modules: Vec<String> = files.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let is_test = |path: &str| {
        let behind = |module: &String| path.strip_prefix(module.as_str());
        test_modules.iter().filter_map(behind).any(|rest| rest == ".rs" || rest.starts_with('/'))
    };
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        complaints.extend(file_size(path, text));
        let Some(folder) = production_of(path).filter(|_| !is_test(path)) else { continue };
        *crates.entry(folder).or_default() += production(text).count();
        complaints.extend(purity(path, text));
        complaints.extend(http(path, text));
        complaints.extend(layers(path, text));
    }
    complaints.extend(crates.into_iter().filter_map(|(folder, lines)| crate_size(folder, lines, LARGE_CRATES)));
    complaints.extend(decisions(files.iter().map(|(path, _)| path.as_str())));
    complaints
}

/// The folder of the crate whose production code a source belongs to.
fn production_of(path: &str) -> Option<&str> {
    let (folder, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_test = file.split('/').any(|part| part == "tests" || part == "tests.rs") || file.ends_with("_tests.rs");
    (!is_test && !folder.contains('/')).then_some(folder)
}

/// The modules that a source declares for tests only, as paths without `.rs`.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let Some(file) = path.strip_suffix(".rs") else { return Vec::new() };
    let folder = ["/mod", "/lib", "/main"].iter().find_map(|root| file.strip_suffix(root)).unwrap_or(file);
    let lines: Vec<&str> = text.lines().collect();
    let declared = |pair: &[&str]| {
        let name = pair[1].strip_prefix("mod ")?.strip_suffix(';')?;
        (pair[0] == "#[cfg(test)]").then(|| format!("{folder}/{name}"))
    };
    lines.windows(2).filter_map(declared).collect()
}

/// The lines of a source with their numbers, without modules of tests.
fn production(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut lines = text.lines().enumerate();
    std::iter::from_fn(move || {
        let (number, line) = lines.next()?;
        if line.trim() != "#[cfg(test)]" {
            return Some((number + 1, line));
        }
        // The item behind the attribute: up to the line that closes it, as rustfmt indents it.
        let indent = &line[..line.len() - line.trim_start().len()];
        for (_, line) in lines.by_ref() {
            let ends_at_once =
                line.starts_with(indent) && line.ends_with(';') && !line[indent.len()..].starts_with(' ');
            if ends_at_once || line == format!("{indent}}}") {
                break;
            }
        }
        let (number, line) = lines.next()?;
        Some((number + 1, line))
    })
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Whether a line of code contains a word that is not part of a longer identifier.
fn names(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, found)| !line[..at].ends_with(part) && !line[at + found.len()..].starts_with(part))
}

fn is_listed(path: &str, list: &[&str]) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(folder) => path.strip_prefix(folder).is_some_and(|file| !file.contains('/')),
        None => path == *entry || (entry.ends_with('/') && path.starts_with(entry)),
    })
}

/// Rejects runtimes, locks and clocks in pure modules, so that tests can produce any order of events.
fn purity(path: &str, text: &str) -> Vec<String> {
    if !is_listed(path, PURE) {
        return Vec::new();
    }
    let exempt = |word: &str| EXEMPT.iter().any(|(file, known, _)| *file == path && *known == word);
    let mut complaints = Vec::new();
    for (number, line) in production(text) {
        for word in IMPURE.iter().filter(|word| names(code(line), word) && !exempt(word)) {
            complaints.push(format!("{path}:{number}: a pure module must not use {word}"));
        }
    }
    complaints
}

/// Rejects the `http` crate outside of the listed modules.
fn http(path: &str, text: &str) -> Vec<String> {
    if is_listed(path, HTTP) {
        return Vec::new();
    }
    let uses = |line: &str| {
        line.match_indices("http::")
            .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c)))
    };
    let found = production(text).find(|(_, line)| uses(code(line)));
    found.map(|(number, _)| format!("{path}:{number}: this module must not use the http crate")).into_iter().collect()
}

/// Rejects uses of modules of the same or a higher layer.
fn layers(path: &str, text: &str) -> Vec<String> {
    let Some(file) = path.strip_prefix("crates/apiserver/src/").filter(|file| *file != "lib.rs") else {
        return Vec::new();
    };
    let own = file.split(['/', '.']).next().unwrap_or_default();
    let layer = |module: &str| LAYERS.iter().position(|modules| modules.contains(&module));
    let Some(own_layer) = layer(own) else {
        return vec![format!("{path}:1: the module {own} has no layer; add it to LAYERS")];
    };
    let mut complaints = Vec::new();
    for (number, line) in production(text) {
        let code = code(line);
        for (at, found) in code.match_indices("crate::") {
            let used = code[at + found.len()..].split(|c: char| !c.is_alphanumeric() && c != '_').next();
            let used = used.unwrap_or_default();
            if used != own && layer(used).is_some_and(|layer| layer >= own_layer) {
                complaints
                    .push(format!("{path}:{number}: the module {own} must not use {used}, which is not below it"));
            }
        }
    }
    complaints
}

/// Rejects files above the maximum length.
fn file_size(path: &str, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let known = LONG_FILES.iter().find(|(file, _)| *file == path).map_or(FILE_LINES_MAX, |(_, max)| *max);
    (lines > known && !GENERATED.contains(&path))
        .then(|| format!("{path}:{lines}: longer than {known} lines; split it"))
}

/// Rejects crates above the maximum size. A crate is compiled on one core.
fn crate_size(folder: &str, lines: usize, large: &[(&str, usize)]) -> Option<String> {
    let known = large.iter().find(|(listed, _)| *listed == folder).map(|(_, max)| *max);
    match known {
        Some(_) if lines <= CRATE_LINES_MAX => {
            Some(format!("crates/{folder}: has {lines} lines and is no large crate anymore; take it off the list"))
        }
        _ if lines > known.unwrap_or(CRATE_LINES_MAX) => {
            let max = known.unwrap_or(CRATE_LINES_MAX);
            Some(format!("crates/{folder}: has {lines} lines without tests, more than {max}; split it"))
        }
        _ => None,
    }
}

/// Rejects two decisions with the same number.
fn decisions<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    let mut complaints = Vec::new();
    for path in paths {
        let Some(file) = path.strip_prefix("docs/decisions/") else { continue };
        let Some((number, _)) = file.split_once('-') else { continue };
        if let Some(first) = known.insert(number, file) {
            complaints.push(format!("{path}: {first} has the number {number} too"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::{check, crate_size, decisions, production};

    /// Checks one planted file. Complaints about the size of its crate are ignored.
    #[track_caller]
    fn planted(path: &str, text: &str, expected: &[&str]) {
        let mut found = check(&[(path.to_owned(), text.to_owned())]);
        found.retain(|complaint| complaint.starts_with(path));
        let expected: Vec<String> = expected.iter().map(|complaint| format!("{path}:{complaint}")).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn pure_module_with_runtime_lock_or_clock_is_refused() {
        let path = "crates/apply/src/planted.rs";
        planted(path, "use tokio::sync::mpsc;\n", &["1: a pure module must not use tokio"]);
        planted(path, "x\nuse parking_lot::Once;\n", &["2: a pure module must not use parking_lot"]);
        planted(path, "use std::sync::{Arc, Mutex};\n", &["1: a pure module must not use Mutex"]);
        planted(path, "let lock = std::sync::RwLock::new(1);\n", &["1: a pure module must not use RwLock"]);
        planted(path, "let now = Instant::now();\n", &["1: a pure module must not use Instant::now"]);
        planted(path, "SystemTime::now()\n", &["1: a pure module must not use SystemTime::now"]);
        planted(path, "OffsetDateTime::now_utc()\n", &["1: a pure module must not use OffsetDateTime::now_utc"]);
    }

    #[test]
    fn purity_rule_ignores_comments_tests_and_other_modules() {
        planted("crates/apply/src/planted.rs", "// tokio\nlet mutex_like = 1; // Mutex\nstruct MutexLike;\n", &[]);
        planted("crates/apply/src/a.rs", "#[cfg(test)]\nmod tests {\n    use tokio::x;\n}\n", &[]);
        planted("crates/apply/src/a/tests.rs", "use tokio::x;\n", &[]);
        planted("crates/apply/tests/it/a.rs", "use tokio::x;\n", &[]);
        planted("crates/apiserver/src/transport/listener.rs", "use tokio::x;\n", &[]);
    }

    #[test]
    fn code_after_a_test_module_is_checked() {
        let text = "a\n#[cfg(test)]\nmod tests;\nb\n#[cfg(test)]\nmod more {\n    x\n}\nc\n";
        assert_eq!(production(text).collect::<Vec<_>>(), [(1, "a"), (4, "b"), (9, "c")]);
        let text = "#[cfg(test)]\nmod tests {\n    x;\n}\nuse tokio::x;\n";
        planted("crates/apply/src/a.rs", text, &["5: a pure module must not use tokio"]);
    }

    #[test]
    fn http_outside_the_listed_modules_is_refused() {
        let text = "use http::Method;\n";
        let refused = ["1: this module must not use the http crate"];
        planted("crates/cacher/src/planted.rs", text, &refused);
        planted("crates/write/src/planted.rs", text, &refused);
        planted("crates/apiserver/src/filters/planted.rs", text, &[]);
        planted("crates/client/src/transport/planted.rs", text, &[]);
        planted("crates/cacher/src/planted.rs", "use crate::http::x; // http::Method\n", &[]);
    }

    #[test]
    fn module_of_apiserver_that_uses_a_higher_layer_is_refused() {
        let path = "crates/apiserver/src/filters/planted.rs";
        let text = "use crate::response::body::Body;\nuse crate::filters::audit;\n// crate::chain\nuse crate::shared::Shared;\n";
        planted(path, text, &["4: the module filters must not use shared, which is not below it"]);
        let path = "crates/apiserver/src/response/body.rs";
        planted(
            path,
            "let x = crate::handlers::y();\n",
            &["1: the module response must not use handlers, which is not below it"],
        );
        let path = "crates/apiserver/src/novel.rs";
        planted(path, "", &["1: the module novel has no layer; add it to LAYERS"]);
    }

    #[test]
    fn module_for_tests_only_is_found_beside_its_parent() {
        let text = "mod a;\n#[cfg(test)]\nmod faults;\n#[cfg(unix)]\nmod b;\n";
        for (path, expected) in [
            ("crates/x/src/lib.rs", "crates/x/src/faults"),
            ("crates/x/src/store/mod.rs", "crates/x/src/store/faults"),
            ("crates/x/src/store.rs", "crates/x/src/store/faults"),
        ] {
            assert_eq!(super::test_modules(path, text), [expected], "{path}");
        }
        assert!(super::test_modules("README.md", text).is_empty());
    }

    #[test]
    fn long_file_is_refused() {
        planted("crates/apply/tests/it/planted.rs", &"x\n".repeat(900), &[]);
        planted("crates/apply/tests/it/planted.rs", &"x\n".repeat(901), &["901: longer than 900 lines; split it"]);
    }

    #[test]
    fn crate_above_its_size_limit_is_rejected() {
        assert_eq!(crate_size("x", 15_000, &[]), None);
        let told = |lines, large: &[(&str, usize)]| crate_size("x", lines, large).unwrap_or_default();
        assert_eq!(told(15_001, &[]), "crates/x: has 15001 lines without tests, more than 15000; split it");
        assert_eq!(crate_size("x", 16_000, &[("x", 16_000)]), None);
        assert!(told(16_001, &[("x", 16_000)]).ends_with("more than 16000; split it"));
        assert!(told(15_000, &[("x", 16_000)]).ends_with("take it off the list"));
    }

    #[test]
    fn decision_number_used_twice_is_refused() {
        let paths = ["docs/decisions/0001-a.md", "docs/decisions/0002-b.md", "docs/decisions/0002-c.md"];
        let expected = ["docs/decisions/0002-c.md: 0002-b.md has the number 0002 too"];
        assert_eq!(decisions(paths.into_iter()), expected);
    }
}
