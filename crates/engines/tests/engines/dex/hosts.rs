//! Test hosts: let the compute servers of a simulation execute each other's requests.
#![allow(dead_code, unreachable_pub, reason = "each suite uses its part")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::dex::DexTable;
use farleaf_fabric::sim::Sim;
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric, Incarnation, ListenConfig};
use farleaf_index::IndexError;
use farleaf_index::compute::{Host, number_of};
use farleaf_pool::Session;

/// The compute servers of a simulation that take requests.
#[derive(Default)]
pub struct Hosts(RefCell<BTreeMap<Incarnation, Serving>>);

struct Serving {
    host: Arc<Host<DexTable>>,
    dex: DexTable,
    endpoint: AnyEndpoint,
    /// Tasks that serve.
    tasks: Rc<Cell<usize>>,
    is_open: bool,
}

struct Task(Rc<Cell<usize>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Hosts {
    /// Lets every compute server of `sim` take calls.
    pub fn of(sim: &Sim) -> Rc<Self> {
        for compute in 0..sim.config().compute_servers {
            let number = number_of(compute as u32);
            sim.fabric(compute).expose(number, 0, &ListenConfig::default()).expect("exposed");
        }
        Rc::default()
    }

    /// Executes requests for `dex` in the session's compute server, until that leaves.
    pub fn serve(
        &self,
        dex: DexTable,
        session: Session,
    ) -> impl Future<Output = Result<(), IndexError>> + use<> {
        let endpoint = session.endpoint().clone();
        let mut list = self.0.borrow_mut();
        let serving = list.entry(endpoint.incarnation()).or_insert_with(|| Serving {
            host: Arc::default(),
            dex: dex.clone(),
            endpoint,
            tasks: Rc::default(),
            is_open: true,
        });
        serving.host.add(dex);
        serving.is_open = true;
        serving.tasks.set(serving.tasks.get() + 1);
        let task = Task(Rc::clone(&serving.tasks));
        let serve = Arc::clone(&serving.host).serve(session);
        async move {
            let _task = task;
            serve.await
        }
    }

    /// The table begins no more requests in this compute server, whose tasks go on.
    pub fn close(&self, who: Incarnation) {
        let mut list = self.0.borrow_mut();
        let serving = list.get_mut(&who).expect("it serves");
        serving.host.remove(serving.dex.meta());
        serving.is_open = false;
    }

    /// The compute server takes no more requests, and its tasks end.
    pub fn leave(&self, who: Incarnation) {
        self.close(who);
        let endpoint = self.0.borrow()[&who].endpoint.clone();
        endpoint.clone().spawn(async move { endpoint.leave().await });
    }

    /// Those that take requests.
    pub fn members(&self) -> Vec<Incarnation> {
        let list = self.0.borrow();
        let open = list.iter().filter(|(_, serving)| serving.is_open && serving.tasks.get() > 0);
        open.map(|(who, _)| *who).collect()
    }
}
