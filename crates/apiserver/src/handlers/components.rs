//! `componentstatuses`: the health of a control plane's components, computed at each read and not stored
//! (`pkg/registry/core/componentstatus`). Deprecated since v1.19; `kubectl get cs` still reads it.
//!
//! A kube-apiserver probes the components on its machine. This server has no such components and reports each one as
//! unhealthy.

use bytes::Bytes;
use http::Response;
use listwatch_json::{Value, json};
use listwatch_meta::{Change, Object, Revision, Status};
use listwatch_wire::query::{Query, list_options};

use crate::handlers::read::check_export;
use crate::request::routing::ResourceRoute;
use crate::response::body::Body;
use crate::response::preferences::ResponsePreferences;
use crate::response::view::{ListView, ObjectView};
use crate::shared::Shared;

/// Components of a control plane that this server does not have.
const ABSENT_COMPONENTS: [&str; 2] = ["controller-manager", "scheduler"];

/// The name of the store in the list: the name of a cluster's first etcd member.
const STORE: &str = "etcd-0";

/// Responds to a read of the components.
///
/// # Errors
/// 405 for a watch; 400 and 422 for an invalid list; 500 for an unknown component, as in kube-apiserver.
pub(crate) async fn answer(
    shared: &Shared,
    route: &ResourceRoute<'_>,
    query: &Query<'_>,
    preferences: &ResponsePreferences,
) -> Result<Response<Body>, Status> {
    let resource = &route.resource;
    let problem = shared.backend.storage().health().await.err().map(|fault| fault.to_string());
    let mut found: Vec<(&str, Value)> =
        ABSENT_COMPONENTS.map(|name| (name, component(name, Err(&absent(name))))).into();
    found.push((STORE, component(STORE, problem.as_ref().map_or(Ok(()), |why| Err(why)))));
    found.sort_by_key(|(name, _)| *name);
    let bytes = |component: &Value| Bytes::from(component.to_string());
    if let Some(name) = route.name {
        let view = ObjectView::negotiate(preferences, resource)?;
        check_export(query)?;
        let (_, component) = found
            .iter()
            .find(|(found, _)| *found == name)
            .ok_or_else(|| Status::unknown(format!("Component not found: {name}")))?;
        return view.bytes(200, resource, bytes(component));
    }
    if route.is_watch() {
        return Err(Status::verb_not_supported("watch", resource.gr()));
    }
    let view = ListView::negotiate(preferences, resource)?;
    let request = list_options(query)?.0.list(&resource.shape)?;
    let mut items = Vec::new();
    for (name, component) in &found {
        let key = resource.key(None, name)?;
        let object =
            Object::from_stored(key, Revision::ZERO, Change::Added, component.to_string().as_bytes(), &resource.shape)
                .map_err(Status::internal)?;
        if request.labels.matches(|label| object.label(label)) && request.fields.matches(&object, &resource.shape) {
            items.push(bytes(component));
        }
    }
    view.documents(resource, &items)
}

fn absent(name: &str) -> String {
    format!("this server has no {name}")
}

fn component(name: &str, health: Result<(), &str>) -> Value {
    let (status, message) = match health {
        Ok(()) => ("True", "ok"),
        Err(why) => ("False", why),
    };
    json!({
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    })
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Empty};

    use super::*;
    use crate::ApiServer;

    async fn get(server: &ApiServer, path: &str, accept: &str) -> (u16, Value, String) {
        let request = Request::get(path).header("accept", accept).body(Empty::<Bytes>::new()).unwrap();
        let (parts, body) = server.service().handle(request).await.into_parts();
        let warning = parts.headers.get("warning").map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
        let bytes = Response::new(body).collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), serde_json::from_slice(&bytes).unwrap_or_default(), warning)
    }

    #[tokio::test]
    async fn component_statuses_are_listed_read_and_shown_as_a_table() {
        const PATH: &str = "/api/v1/componentstatuses";
        const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let server = ApiServer::builder().build().await.unwrap();
        let names = |list: &Value| -> Vec<String> {
            list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].to_string()).collect()
        };
        let (code, list, warning) = get(&server, PATH, "application/json").await;
        assert_eq!((code, &list["kind"], &list["metadata"]), (200, &json!("ComponentStatusList"), &json!({})));
        assert_eq!(names(&list), [r#""controller-manager""#, r#""etcd-0""#, r#""scheduler""#]);
        assert_eq!(warning, "299 - \"v1 ComponentStatus is deprecated in v1.19+\"");
        let (_, store, _) = get(&server, &format!("{PATH}/etcd-0"), "application/json").await;
        assert_eq!(store["conditions"], json!([{"type": "Healthy", "status": "True", "message": "ok"}]));
        let (_, one, _) = get(&server, &format!("{PATH}?fieldSelector=metadata.name%3Dscheduler"), "*/*").await;
        assert_eq!(names(&one), [r#""scheduler""#]);
        let (_, none, _) = get(&server, &format!("{PATH}?labelSelector=a"), "*/*").await;
        assert_eq!(names(&none), [""; 0]);
        let (_, table, _) = get(&server, PATH, TABLE).await;
        let columns: Vec<&Value> = table["columnDefinitions"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
        assert_eq!(columns, ["Name", "Status", "Message", "Error"]);
        let cells: Vec<&Value> = table["rows"].as_array().unwrap().iter().map(|row| &row["cells"]).collect();
        assert_eq!(cells[1], &json!(["etcd-0", "Healthy", "ok", ""]));
        assert_eq!(cells[2], &json!(["scheduler", "Unhealthy", "this server has no scheduler", ""]));
        let (code, status, _) = get(&server, &format!("{PATH}/x"), "*/*").await;
        assert_eq!((code, &status["message"]), (500, &json!("Component not found: x")));
        let (code, status, _) = get(&server, &format!("{PATH}?watch=true"), "*/*").await;
        let why = "watch is not supported on resources of kind \"componentstatuses\"";
        assert_eq!((code, &status["message"]), (405, &json!(why)));
    }

    #[tokio::test]
    async fn component_status_is_served_as_protobuf() {
        let server = ApiServer::builder().build().await.unwrap();
        for path in ["/api/v1/componentstatuses", "/api/v1/componentstatuses/etcd-0"] {
            let request = Request::get(path).header("accept", "application/vnd.kubernetes.protobuf");
            let response = server.service().handle(request.body(Empty::<Bytes>::new()).unwrap()).await;
            assert_eq!(response.status(), 200, "{path}");
            let bytes = response.into_body().collect().await.unwrap().to_bytes();
            assert!(bytes.starts_with(b"k8s\0"), "{path}");
        }
    }
}
