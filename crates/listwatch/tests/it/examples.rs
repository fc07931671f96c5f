//! The examples that end by themselves are run, not only built.

// Its `main` is not called here.
#[allow(dead_code)]
#[path = "../../examples/controller.rs"]
mod controller;

#[tokio::test]
async fn the_controller_does_what_it_says() {
    controller::run().await.expect("the example works");
}
