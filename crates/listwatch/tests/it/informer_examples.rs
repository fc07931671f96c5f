//! The examples of informers are run, not only built.

// Their `main`s are not called here.
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
async fn pods_are_cached_typed_and_found_by_node() {
    informer_pods::run().await.expect("the example works");
}

#[tokio::test]
async fn metadata_alone_takes_little_room() {
    informer_metadata::run().await.expect("the example works");
}

#[tokio::test]
async fn handlers_join_late_and_lag_and_leave() {
    informer_late::run().await.expect("the example works");
}

#[tokio::test]
async fn anything_that_lists_and_watches_has_informers() {
    own_list_watch::run().await.expect("the example works");
}
