//! [`Dispatch`]: an admission request for webhooks and policies. The value provides the attributes, the namespace, the
//! matching of criteria, and the conversion of the objects to the versions that rules name.

use listwatch_access::AuthorizerChain;
use listwatch_admission::{AdmissionRequest, Operation, ResourceName};
use listwatch_cel::AuthorizationDecisions;
use listwatch_meta::{GroupResource, Status, fuel};
use listwatch_validation::{Object, child};
use listwatch_webhooks::{Attributes, ConditionResult, Invocation, MatchCriteria, Matching, NamespaceLabels, Webhook};

use crate::metered::metered;

const NAMESPACES: GroupResource<'_> = GroupResource { group: "", resource: "namespaces" };

/// An admission request. The namespace and the authorizer's decisions are cached, so that all webhooks and policies
/// share them.
#[derive(Debug)]
pub struct Dispatch<'a> {
    request: &'a AdmissionRequest<'a>,
    /// The resource of the request, then the equivalent resources.
    names: Vec<ResourceName<'a>>,
    options: Option<Object>,
    /// The namespace of the request; `None` until the namespace is read.
    namespace: Option<Object>,
    /// The authorizer's decisions on the checks in expressions.
    decisions: AuthorizationDecisions,
}

/// The objects of a request in one version, as webhooks and policies receive them.
#[derive(Debug)]
pub struct ShownObjects<'a> {
    /// The resource and kind in this version.
    pub version: ResourceName<'a>,
    /// The new object; `None` on delete.
    pub object: Option<Object>,
    /// The old object; `None` on create and connect.
    pub old_object: Option<Object>,
}

impl<'a> Dispatch<'a> {
    /// Creates the value from the request. Does not read the namespace yet.
    pub fn new(request: &'a AdmissionRequest<'a>) -> Self {
        let mut names = vec![request.details.requested()];
        names.extend(request.details.equivalents());
        Dispatch {
            request,
            names,
            options: request.details.options(),
            namespace: None,
            decisions: AuthorizationDecisions::new(),
        }
    }

    /// The resource of the request.
    pub fn requested(&self) -> ResourceName<'a> {
        self.names[0]
    }

    /// The other versions and groups of the resource.
    pub fn equivalents(&self) -> &[ResourceName<'a>] {
        &self.names[1..]
    }

    /// The attributes of the request with these objects.
    pub fn attributes<'s>(&'s self, object: Option<&'s Object>, old_object: Option<&'s Object>) -> Attributes<'s> {
        let AdmissionRequest { operation, name, subresource, namespace, user, dry_run, .. } = *self.request;
        let resource = self.requested();
        let is_namespace = is_namespaces(&resource);
        Attributes {
            operation,
            resource,
            subresource: subresource.unwrap_or_default(),
            namespace: namespace.unwrap_or(if is_namespace { name } else { "" }),
            name,
            user,
            dry_run,
            object,
            old_object,
            options: self.options.as_ref(),
        }
    }

    /// Returns the version in which the criteria match the request with this object; `None` if they do not match. Match
    /// conditions are not evaluated.
    ///
    /// # Errors
    /// 404 if a namespace selector applies and the namespace does not exist; 500 for an invalid selector.
    pub async fn matching(
        &mut self,
        criteria: &MatchCriteria,
        object: &Object,
    ) -> Result<Option<ResourceName<'a>>, Status> {
        let object = (self.request.operation != Operation::Delete).then_some(object);
        let found = self.matching_now(criteria, object)?;
        if !matches!(found, MatchedNow::NeedsNamespace) {
            return Ok(found.version());
        }
        let name = self.attributes(None, None).namespace.to_owned();
        self.read_namespace(&name).await?;
        Ok(self.matching_now(criteria, object)?.version())
    }

    fn matching_now(&self, criteria: &MatchCriteria, object: Option<&Object>) -> Result<MatchedNow<'a>, Status> {
        let attributes = self.attributes(object, self.request.old_object);
        let labels = self.namespace.as_ref().map(|namespace| child(child(namespace, "metadata"), "labels"));
        let namespace = labels.map_or(NamespaceLabels::Unread, NamespaceLabels::Read);
        Ok(match criteria.matching(&attributes, self.equivalents(), namespace)? {
            Matching::Skip => MatchedNow::Skip,
            Matching::NeedsNamespace => MatchedNow::NeedsNamespace,
            Matching::Call(Invocation { resource }) => {
                let position = self.names.iter().position(|name| *name == resource);
                position.map_or(MatchedNow::Skip, |position| MatchedNow::Version(self.names[position]))
            }
        })
    }

    /// Reads the namespace of the request for [`Dispatch::namespace`].
    ///
    /// # Errors
    /// 404 if the namespace does not exist.
    pub async fn load_namespace(&mut self) -> Result<(), Status> {
        match self.request.namespace.filter(|_| !is_namespaces(&self.requested())) {
            Some(name) => self.read_namespace(name).await,
            None => Ok(()),
        }
    }

    /// The namespace of the request, after [`Dispatch::load_namespace`]; `None` for a cluster-scoped object, such as a
    /// Namespace.
    pub fn namespace(&self) -> Option<&Object> {
        self.namespace.as_ref().filter(|_| !is_namespaces(&self.requested()))
    }

    /// Reads the namespace whose labels the namespace selector matches. For a Namespace, this is the stored version of
    /// that Namespace.
    async fn read_namespace(&mut self, name: &str) -> Result<(), Status> {
        if self.namespace.is_none() {
            let found = self.request.objects.get_cached("", "v1", "namespaces", None, name).await?;
            let found = found.ok_or_else(|| Status::not_found(NAMESPACES, name))?;
            self.namespace = Some(serde_json::from_slice(&found).map_err(Status::internal)?);
        }
        Ok(())
    }

    /// Converts the objects of the request to a version.
    ///
    /// # Errors
    /// 500 if an object cannot be converted; 504 if the fuel is used up.
    pub async fn show(&self, object: &Object, version: ResourceName<'a>) -> Result<ShownObjects<'a>, Status> {
        let details = self.request.details;
        let object = match self.request.operation {
            Operation::Delete => None,
            _ => Some(details.show(object, version).await?),
        };
        let old_object = match self.request.old_object {
            Some(old) => Some(details.show_old(old, version).await?),
            None => None,
        };
        // Objects that were converted without fuel may be incomplete.
        if fuel::is_exhausted() {
            return Err(Status::request_timed_out());
        }
        Ok(ShownObjects { version, object, old_object })
    }

    /// Whether the match conditions of a webhook hold.
    ///
    /// # Errors
    /// 403 if a condition fails under the failure policy `Fail`; 504 if the fuel or the time is used up.
    pub(crate) async fn conditions_hold(
        &mut self,
        webhook: &Webhook,
        shown: &ShownObjects<'_>,
        authorizers: &AuthorizerChain,
    ) -> Result<bool, Status> {
        if !webhook.has_conditions() {
            return Ok(true);
        }
        loop {
            let attributes = self.attributes(shown.object.as_ref(), shown.old_object.as_ref());
            let invocation = Invocation { resource: shown.version };
            let result = metered(self.request.details.deadline(), || {
                webhook.check_conditions(&attributes, &invocation, &self.decisions)
            })?;
            if !self.decide(authorizers).await {
                return Ok(result? == ConditionResult::Call);
            }
        }
    }

    /// The authorizer's decisions that the expressions of this request can use.
    pub fn decisions(&self) -> &AuthorizationDecisions {
        &self.decisions
    }

    /// Decides the undecided authorization check that stopped an evaluation. Returns false if no check is undecided.
    pub async fn decide(&mut self, authorizers: &AuthorizerChain) -> bool {
        authorizers.decide_expression(self.request.user, &mut self.decisions).await
    }
}

/// The result of matching criteria with the namespace labels known so far.
enum MatchedNow<'a> {
    Skip,
    NeedsNamespace,
    Version(ResourceName<'a>),
}

impl<'a> MatchedNow<'a> {
    fn version(self) -> Option<ResourceName<'a>> {
        match self {
            MatchedNow::Version(version) => Some(version),
            _ => None,
        }
    }
}

fn is_namespaces(resource: &ResourceName<'_>) -> bool {
    resource.group.is_empty() && resource.resource == "namespaces"
}
