//! Runs the examples of informers.

// The `main` functions of the examples are not called here.
#[allow(dead_code)]
#[path = "../../examples/informer_late.rs"]
mod informer_late;
#[allow(dead_code)]
#[path = "../../examples/informer_metadata.rs"]
mod informer_metadata;
#[allow(dead_code)]
#[path = "../../examples/informer_pods.rs"]
mod informer_pods;
#[allow(dead_code)]
#[path = "../../examples/own_list_watch.rs"]
mod own_list_watch;

#[tokio::test]
async fn informer_pods_example_finds_typed_pods_by_node() {
    informer_pods::run().await.expect("the example works");
}

#[tokio::test]
async fn informer_metadata_example_keeps_only_metadata() {
    informer_metadata::run().await.expect("the example works");
}

#[tokio::test]
async fn informer_late_example_delivers_the_current_state() {
    informer_late::run().await.expect("the example works");
}

#[tokio::test]
async fn own_list_watch_example_feeds_an_informer() {
    own_list_watch::run().await.expect("the example works");
}
