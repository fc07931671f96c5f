//! The errors of requests that no authorizer allows (`endpoints/handlers/responsewriters/errors.go`).

use listwatch_meta::go::quote;
use listwatch_meta::status::reason;
use listwatch_meta::{GroupResource, Status};

use crate::authorizer::{Attributes, Authorization};

/// Returns the 403 with the text of kube-apiserver.
pub fn forbidden(attributes: &Attributes<'_>, why: &str) -> Status {
    let Attributes { verb, api_group: group, resource, subresource, namespace, name, path, .. } = attributes;
    let user = quote(&attributes.user.username);
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    if !attributes.is_resource_request {
        let text = format!("forbidden: User {user} cannot {verb} path {}{why}", quote(path));
        return Status::failure(403, reason::FORBIDDEN, text).with_details(Default::default());
    }
    let what = match *subresource {
        "" => quote(resource),
        subresource => quote(&format!("{resource}/{subresource}")),
    };
    let place = match *namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {}", quote(namespace)),
    };
    let text = format!("User {user} cannot {verb} resource {what} in API group {} {place}{why}", quote(group));
    Status::forbidden(GroupResource { group, resource }, name, text)
}

/// Checks the answer for the further verb that a subresource needs. The text has the reason only
/// (`pkg/registry/core/pod/rest/authorize.go`).
///
/// # Errors
/// 500 if an authorizer failed, as upstream even if the request is allowed; 403 if the request is not allowed.
pub fn ensure_authorized(attributes: &Attributes<'_>, answer: &Authorization) -> Result<(), Status> {
    let Attributes { api_group: group, resource, name, .. } = *attributes;
    match (&*answer.error, answer.is_allowed()) {
        ("", true) => Ok(()),
        ("", false) => Err(Status::forbidden(GroupResource { group, resource }, name, &answer.reason)),
        (error, _) => Err(Status::unknown(error)),
    }
}

#[cfg(test)]
mod tests {
    use listwatch_meta::UserInfo;

    use super::*;

    #[test]
    fn further_verb_that_is_not_allowed_returns_upstreams_text() {
        let user = UserInfo { username: "bob".to_owned(), ..UserInfo::default() };
        let attributes = Attributes {
            namespace: "ns",
            name: "p",
            subresource: "exec",
            ..Attributes::resource(&user, "create", "", "pods")
        };
        for (answer, expected) in [
            (Authorization::allow("rule"), None),
            (Authorization::no_opinion(), Some((403, "pods \"p\" is forbidden: "))),
            (Authorization::deny("read only"), Some((403, "pods \"p\" is forbidden: read only"))),
            (Authorization::no_opinion().with_error("the webhook is down"), Some((500, "the webhook is down"))),
            (Authorization::allow("").with_error("the webhook is down"), Some((500, "the webhook is down"))),
        ] {
            let found = ensure_authorized(&attributes, &answer).err().map(|status| (status.code, status.message));
            assert_eq!(found, expected.map(|(code, text)| (code, text.to_owned())), "{answer:?}");
        }
    }
}
