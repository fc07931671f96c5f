//! [`root_paths`]: the document of `/`.

use std::collections::BTreeSet;

use bytes::Bytes;
use listwatch_json::json;
use listwatch_registry::Registry;

/// The paths outside of all groups.
const PATHS: [&str; 14] = [
    "/.well-known/openid-configuration",
    "/api",
    "/apis",
    "/flagz",
    "/healthz",
    "/livez",
    "/metrics",
    "/metrics/slis",
    "/openapi/v2",
    "/openapi/v3",
    "/openid/v1/jwks",
    "/readyz",
    "/statusz",
    "/version",
];

/// The pages about the process that a server serves. By default, it serves both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedZpages {
    /// Whether the server serves `/statusz` (`ComponentStatusz`).
    pub statusz: bool,
    /// Whether the server serves `/flagz` (`ComponentFlagz`).
    pub flagz: bool,
}

impl Default for ServedZpages {
    fn default() -> Self {
        ServedZpages { statusz: true, flagz: true }
    }
}

/// Returns the served paths outside of all groups.
pub(crate) fn ungrouped_paths(zpages: ServedZpages) -> impl Iterator<Item = &'static str> {
    PATHS.into_iter().filter(move |path| match *path {
        "/statusz" => zpages.statusz,
        "/flagz" => zpages.flagz,
        _ => true,
    })
}

/// Returns the document of `/` and `/index.html`: the served paths, sorted. `remote` has group and version of each
/// APIService with a service, available or not.
///
/// Source: `apiserver/pkg/server/routes/index.go`, `AddAPIService` in `kube-aggregator/pkg/apiserver/apiserver.go`.
pub fn root_paths<'a>(
    registry: &Registry,
    zpages: ServedZpages,
    remote: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Bytes {
    let mut paths: BTreeSet<String> = ungrouped_paths(zpages).map(str::to_owned).collect();
    let mut add = |group: &str, version: &str| {
        if group.is_empty() {
            paths.insert(format!("/api/{version}"));
        } else {
            paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{version}")]);
        }
    };
    for resource in registry.resources().iter().chain(registry.unstored()) {
        add(&resource.group, &resource.version);
    }
    for (group, version) in remote {
        add(group, version);
    }
    serde_json::to_vec(&json!({ "paths": paths })).expect("strings serialize").into()
}

#[cfg(test)]
mod tests {
    use listwatch_json::Value;

    use super::*;

    #[test]
    fn root_paths_are_sorted_and_list_local_and_remote_group_versions_once() {
        let remote = [("ext.example.com", "v1"), ("ext.example.com", "v2"), ("apps", "v1")];
        let document = root_paths(&Registry::builtin(), ServedZpages::default(), remote);
        let document: Value = serde_json::from_slice(&document).unwrap();
        let paths: Vec<&str> = document["paths"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(paths.windows(2).all(|pair| pair[0] < pair[1]), "{paths:?}");
        for path in [
            "/api/v1",
            "/apis/apps",
            "/apis/apps/v1",
            "/apis/authorization.k8s.io/v1",
            "/apis/ext.example.com",
            "/apis/ext.example.com/v1",
            "/apis/ext.example.com/v2",
            "/version",
        ] {
            assert!(paths.contains(&path), "{path} is missing in {paths:?}");
        }
    }

    #[test]
    fn root_paths_list_only_the_served_pages_about_the_process() {
        for (statusz, flagz) in [(true, true), (true, false), (false, true), (false, false)] {
            let document = root_paths(&Registry::builtin(), ServedZpages { statusz, flagz }, []);
            let document: Value = serde_json::from_slice(&document).unwrap();
            let has = |path: &str| document["paths"].as_array().unwrap().iter().any(|listed| *listed == path);
            assert_eq!((has("/statusz"), has("/flagz"), has("/metrics")), (statusz, flagz, true));
        }
    }
}
