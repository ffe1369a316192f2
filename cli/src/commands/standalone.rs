//! `thermocline standalone`.

use crate::args::StandaloneArgs;
use crate::standalone::Node;
use crate::{Fault, Settings, kill_at};

pub(super) async fn run(args: StandaloneArgs) -> Result<(), Fault> {
    let settings = Settings::load(&args.config, &args.flags())?.value;
    let dir = settings.dir.display().to_string();
    let node = Node::start_observed(settings, kill_at::observer(args.kill_at)).await?;
    println!("serving at {} with data in {dir}, cold store {}", node.endpoint(), node.cold_store());
    if let Some(admin) = node.admin_address() {
        println!("metrics at http://{admin}/metrics, health at http://{admin}/readyz");
    }
    println!("try: thermocline status --endpoint {}", node.endpoint());
    crate::roles::print_ready("standalone", &[("endpoint", &node.endpoint())]);
    for refusal in node.read_only_bookies().await {
        eprintln!("warning: {refusal}");
    }
    node.run_until_interrupted().await
}
