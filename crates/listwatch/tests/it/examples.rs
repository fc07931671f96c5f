//! Runs the examples that terminate without user action.

// The example's `main` is not called here.
#[allow(dead_code)]
#[path = "../../examples/controller.rs"]
mod controller;

#[tokio::test]
async fn controller_example_mirrors_config_maps_as_secrets() {
    controller::run().await.expect("the example works");
}
