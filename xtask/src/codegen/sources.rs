//! Fetches the sources of one release: four repositories that Kubernetes publishes for each release.

use std::path::{Path, PathBuf};

use crate::failure::{Outcome, fail};
use crate::process::Run;
use crate::tools;

/// The repositories below `https://github.com/kubernetes/`.
const REPOSITORIES: [&str; 4] = ["api", "apimachinery", "apiextensions-apiserver", "kube-aggregator"];

/// The folder with a release's repositories, which git fetches if they are not there.
pub(super) fn fetch(release: &str) -> Outcome<PathBuf> {
    let tag = tag(release)?;
    let dir = tools::target().join("kubernetes").join(release);
    for repository in REPOSITORIES {
        let folder = dir.join(repository);
        if folder.exists() {
            continue;
        }
        let url = format!("https://github.com/kubernetes/{repository}");
        Run::new("git")
            .args(["-c", "advice.detachedHead=false", "clone", "--quiet", "--depth", "1", "--branch", &tag, &url])
            .arg(&folder)
            .show()?;
    }
    Ok(dir)
}

/// The folders of stable versions, such as `api/core/v1`, below `dir`.
pub(super) fn stable_packages(dir: &Path) -> Outcome<Vec<String>> {
    let is_stable = |name: &str| name.strip_prefix('v').is_some_and(|n| n.bytes().all(|byte| byte.is_ascii_digit()));
    let (mut found, mut open) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "testdata" && !name.starts_with('.') {
                open.push(path);
            } else if name == "generated.proto" && folder.file_name().is_some_and(|it| is_stable(&it.to_string_lossy()))
            {
                let below = folder.strip_prefix(dir).unwrap_or(&folder);
                found.push(below.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    Ok(found)
}

/// The tag of the repositories: `v0.36.2` for `v1.36.2`.
fn tag(release: &str) -> Outcome<String> {
    match release.strip_prefix("v1.") {
        Some(rest) if rest.contains('.') => Ok(format!("v0.{rest}")),
        _ => fail!("{release} is no release, such as v1.36.2"),
    }
}

#[cfg(test)]
mod tests {
    use super::tag;

    #[test]
    fn kubernetes_release_maps_to_repository_tag() {
        assert_eq!(tag("v1.36.2").as_deref(), Ok("v0.36.2"));
        assert_eq!(tag("v1.37.0-beta.0").as_deref(), Ok("v0.37.0-beta.0"));
        assert!(tag("v1.36").is_err() && tag("1.36.2").is_err());
    }
}
