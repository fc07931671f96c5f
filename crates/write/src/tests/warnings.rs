//! Tests which writes return the warnings of the strategy, and for which state of the object.

use listwatch_json::json;

use super::*;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const NAME: &str = "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]";
const GRACE: &str = "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1";

fn deployment(replicas: u32) -> String {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a.b"}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"terminationGracePeriodSeconds": -1, "containers": [{"name": "c", "image": "i"}]}}}})
    .to_string()
}

impl World {
    /// Sends a request that succeeds, and compares the warnings of the response.
    async fn check_warnings(&self, line: &str, body: &str, expected: &[&str]) {
        let response = self.send(line, body).await.unwrap_or_else(|status| panic!("{line}: {}", status.message));
        assert_eq!(response.warnings, expected, "{line} {body}");
    }
}

#[tokio::test]
async fn each_way_to_write_an_object_returns_the_warnings_of_its_strategy() {
    let world = World::new().await;
    let dry_run = format!("POST {DEPLOYMENTS}?dryRun=All");
    world.check_warnings(&dry_run, &deployment(1), &[NAME, GRACE]).await;
    world.check_warnings(&post(DEPLOYMENTS), &deployment(1), &[NAME, GRACE]).await;
    world.check_warnings(&put(DEPLOYMENTS, "a.b"), &deployment(1), &[]).await;
    world.check_warnings(&put(DEPLOYMENTS, "a.b"), &deployment(2), &[GRACE]).await;
    world.check_warnings(&patch(DEPLOYMENTS, "a.b", MERGE), r#"{"spec":{"replicas":3}}"#, &[GRACE]).await;
    world.check_warnings(&patch(DEPLOYMENTS, "a.b", MERGE), r#"{"metadata":{"labels":{"l":"m"}}}"#, &[]).await;
    let apply = format!("PATCH {DEPLOYMENTS}/a.b?fieldManager=m&force=true application/apply-patch+yaml");
    world.check_warnings(&apply, &deployment(4), &[GRACE]).await;
    let scale = format!("PATCH {DEPLOYMENTS}/a.b/scale {MERGE}");
    world.check_warnings(&scale, r#"{"spec":{"replicas":5}}"#, &[GRACE]).await;
    let status = format!("PATCH {DEPLOYMENTS}/a.b/status {MERGE}");
    world.check_warnings(&status, r#"{"status":{"replicas":5}}"#, &[]).await;
}

#[tokio::test]
async fn warnings_are_about_the_object_with_defaults_and_its_generated_name() {
    let world = World::new().await;
    let headless =
        r#"{"metadata":{"name":"s"},"spec":{"clusterIP":"None","loadBalancerIP":"1.1.1.1","ports":[{"port":1}]}}"#;
    let ignored = "spec.loadBalancerIP is ignored for headless services";
    world.check_warnings(&post(SERVICES), headless, &[ignored]).await;
    // The generated name is a DNS label.
    let pod = r#"{"metadata":{"generateName":"p-"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    world.check_warnings(&post(PODS), pod, &[]).await;
}

#[tokio::test]
async fn memory_that_is_not_a_whole_number_of_bytes_returns_a_warning() {
    let world = World::new().await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"memory":"1.2Gi"}}}]}}"#;
    let warning = "spec.containers[0].resources.requests[memory]: fractional byte value \"1288490188800m\" is invalid, must be an integer";
    world.check_warnings(&post(PODS), pod, &[warning]).await;
}

#[tokio::test]
async fn status_of_a_pod_returns_warnings_about_its_addresses() {
    let world = World::new().await;
    let pod = r#"{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    world.send(&post(PODS), pod).await.unwrap();
    let status = format!("PATCH {PODS}/p/status {MERGE}");
    let body = r#"{"status":{"podIP":"FD00::1","podIPs":[{"ip":"FD00::1"}]}}"#;
    let expected = r#"status.podIPs[0].ip: IPv6 address "FD00::1" should be in RFC 5952 canonical format ("fd00::1")"#;
    world.check_warnings(&status, body, &[expected]).await;
}
