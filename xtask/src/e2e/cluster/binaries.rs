//! Finds the Kubernetes binaries of a run: the directory comes from a flag or from an environment variable.

use std::path::{Path, PathBuf};

use crate::failure::{Failure, Outcome};

/// The environment variable with the default of `--kubernetes-bin`.
pub(crate) const VARIABLE: &str = "LISTWATCH_KUBERNETES_BIN";

const CONTROLLER_MANAGER: &str = "kube-controller-manager";
const SCHEDULER: &str = "kube-scheduler";
const KUBEMARK: &str = "kubemark";
const API_SERVER: &str = "kube-apiserver";

/// Paths of the upstream binaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binaries {
    pub(crate) controller_manager: PathBuf,
    pub(crate) scheduler: PathBuf,
    /// The hollow kubelet and the hollow kube-proxy are one program.
    pub(crate) kubemark: PathBuf,
    /// Present if the run compares with a real kube-apiserver.
    pub(crate) api_server: Option<PathBuf>,
}

impl Binaries {
    /// Looks for the binaries in `dir`. The error names all that are missing.
    pub(crate) fn find(dir: Option<&Path>, with_api_server: bool) -> Outcome<Self> {
        Self::find_with(dir, with_api_server, Path::is_file)
    }

    fn find_with(dir: Option<&Path>, with_api_server: bool, exists: impl Fn(&Path) -> bool) -> Outcome<Self> {
        let Some(dir) = dir else {
            return Err(Failure::from(format!(
                "not run: no binaries. `--kubernetes-bin DIR` or {VARIABLE} names the directory with {}",
                wanted(with_api_server).join(", ")
            )));
        };
        let missing: Vec<_> = wanted(with_api_server).into_iter().filter(|name| !exists(&dir.join(name))).collect();
        if !missing.is_empty() {
            return Err(Failure::from(format!("not run: {} has no {}", dir.display(), missing.join(", "))));
        }
        Ok(Self {
            controller_manager: dir.join(CONTROLLER_MANAGER),
            scheduler: dir.join(SCHEDULER),
            kubemark: dir.join(KUBEMARK),
            api_server: with_api_server.then(|| dir.join(API_SERVER)),
        })
    }
}

fn wanted(with_api_server: bool) -> Vec<&'static str> {
    let mut names = vec![CONTROLLER_MANAGER, SCHEDULER, KUBEMARK];
    names.extend(with_api_server.then_some(API_SERVER));
    names
}

/// The directory that the environment variable names.
pub(crate) fn directory_of_environment() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::Binaries;
    use std::path::Path;

    #[test]
    fn error_names_the_missing_binaries() {
        let find = |with_api_server, there: &[&str]| {
            let exists = |path: &Path| there.iter().any(|name| path.ends_with(name));
            Binaries::find_with(Some(Path::new("bin")), with_api_server, exists)
        };
        let all = ["kube-controller-manager", "kube-scheduler", "kubemark"];
        assert!(find(false, &all).is_ok_and(|binaries| binaries.api_server.is_none()));
        assert_eq!(find(true, &all).unwrap_err().to_string(), "not run: bin has no kube-apiserver");
        assert_eq!(
            find(false, &["kubemark"]).unwrap_err().to_string(),
            "not run: bin has no kube-controller-manager, kube-scheduler"
        );
    }

    #[test]
    fn error_without_a_directory_names_the_flag_and_the_variable() {
        let error = Binaries::find_with(None, false, |_| true).unwrap_err().to_string();
        assert!(error.starts_with("not run: no binaries. ") && error.contains("LISTWATCH_KUBERNETES_BIN"), "{error}");
    }
}
