//! Finds a resource by any of its names through legacy discovery, which every server supports:
//! [`Client::discover`].
//!
//! Only the necessary documents are fetched: `pods` needs the core group, `deployments.apps` the
//! group `apps`. A group that does not answer (an aggregated API whose server is down) hides only
//! its own resources.

use std::fmt;

use crate::client::Client;
use crate::discovery::{ResourceName, parse_group_list, parse_resource_list};
use crate::problem::Problem;
use crate::resource::ApiResource;

/// A name does not refer to a resource that can be watched.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DiscoverError {
    /// The server has no resource of this name.
    Unknown {
        /// The name.
        name: String,
        /// The groups that did not answer and may contain the resource.
        silent: Vec<String>,
    },
    /// The resource exists but cannot be listed and watched.
    NotWatchable {
        /// The qualified name of the resource.
        name: String,
    },
    /// The server did not answer.
    Unreachable(Problem),
}

impl fmt::Display for DiscoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiscoverError::Unknown { name, silent } if silent.is_empty() => {
                write!(f, "the server doesn't have a resource type {name:?}")
            }
            DiscoverError::Unknown { name, silent } => write!(
                f,
                "the server doesn't have a resource type {name:?}, unless in a group that did not answer: {}",
                silent.join(", ")
            ),
            DiscoverError::NotWatchable { name } => write!(f, "{name} cannot be listed and watched"),
            DiscoverError::Unreachable(problem) => problem.fmt(f),
        }
    }
}

impl std::error::Error for DiscoverError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DiscoverError::Unreachable(problem) => problem.source(),
            DiscoverError::Unknown { .. } | DiscoverError::NotWatchable { .. } => None,
        }
    }
}

impl Client {
    /// Finds a resource by plural, singular, short name or kind, optionally with its group, or its
    /// version and group: `pods`, `po`, `Pod`, `deploy.apps`, `deployments.v1.apps`. If several
    /// resources share a name, the core group precedes the others, which follow in the server's
    /// order. Without a version the group's preferred version is used.
    ///
    /// # Errors
    /// [`DiscoverError`].
    pub async fn discover(&self, name: &str) -> Result<ApiResource, DiscoverError> {
        let wanted = ResourceName::parse(name);
        let mut silent = Vec::new();
        if wanted.may_match("", "v1") {
            let core = self.resources("/api/v1").await.map_err(DiscoverError::Unreachable)?;
            if let Some(found) = pick(&wanted, core)? {
                return Ok(found);
            }
        }
        let document = self.get_document("/apis").await.map_err(DiscoverError::Unreachable)?;
        let groups = parse_group_list(&document).map_err(|error| {
            let problem = Problem::malformed(format!("/apis is no APIGroupList: {error}"));
            DiscoverError::Unreachable(problem.caused_by(error))
        })?;
        for group in groups {
            // A version that the name does not contain is used only if it is the preferred one.
            let preferred = group.versions.first().cloned().unwrap_or_default();
            for version in &group.versions {
                let named = wanted.rest.as_deref().is_some_and(|rest| rest == format!("{version}.{}", group.name));
                if !(named || (*version == preferred && wanted.may_match(&group.name, version))) {
                    continue;
                }
                let path = format!("/apis/{}/{version}", group.name);
                match self.resources(&path).await {
                    Ok(resources) => {
                        if let Some(found) = pick(&wanted, resources)? {
                            return Ok(found);
                        }
                    }
                    Err(problem) => {
                        tracing::debug!(%problem, path, "a group did not answer");
                        silent.push(group.name.clone());
                    }
                }
            }
        }
        Err(DiscoverError::Unknown { name: name.to_owned(), silent })
    }

    async fn resources(&self, path: &str) -> Result<Vec<ApiResource>, Problem> {
        let document = self.get_document(path).await?;
        parse_resource_list(&document)
            .map_err(|error| Problem::malformed(format!("{path} is no APIResourceList: {error}")).caused_by(error))
    }
}

fn pick(wanted: &ResourceName, resources: Vec<ApiResource>) -> Result<Option<ApiResource>, DiscoverError> {
    let mut matching: Vec<ApiResource> = resources.into_iter().filter(|resource| wanted.matches(resource)).collect();
    // A plural name precedes an equal short name.
    matching.sort_by_key(|resource| resource.plural != wanted.name);
    match matching.iter().position(ApiResource::can_watch) {
        Some(position) => Ok(Some(matching.swap_remove(position))),
        None => match matching.first() {
            Some(resource) => Err(DiscoverError::NotWatchable { name: resource.qualified_name() }),
            None => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(plural: &str, short: &str, verbs: &[&str]) -> ApiResource {
        ApiResource {
            version: "v1".to_owned(),
            plural: plural.to_owned(),
            short_names: vec![short.to_owned()],
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..ApiResource::default()
        }
    }

    #[test]
    fn plural_name_precedes_short_name_and_unwatchable_resource_is_an_error() {
        let both = || vec![resource("events", "ev", &["list", "watch"]), resource("ev", "x", &["list", "watch"])];
        let wanted = ResourceName::parse("ev");
        assert_eq!(pick(&wanted, both()).unwrap().unwrap().plural, "ev");
        let bindings = vec![resource("bindings", "b", &["create"])];
        let error = pick(&ResourceName::parse("bindings"), bindings).unwrap_err();
        assert_eq!(error, DiscoverError::NotWatchable { name: "bindings".to_owned() });
        assert_eq!(pick(&ResourceName::parse("pods"), both()), Ok(None));
    }
}
