//! Test servers: compute servers that own ranges of a table and execute what others send.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_engines::AnyIndex;
use farleaf_fabric::sim::SimFabric;
use farleaf_fabric::{AnyEndpoint, Endpoint, Fabric, ListenConfig};
use farleaf_index::compute::{Host, OwnedTable, number_of};
use farleaf_index::{Index, IndexError};
use farleaf_pool::Session;

use super::settle;

pub fn owned(index: &AnyIndex) -> &dyn OwnedTable {
    index.owned().expect("a table with owners")
}

/// A compute server that has the table open and executes what others send.
pub struct Server {
    pub index: AnyIndex,
    pub session: Session,
    host: Arc<Host<AnyIndex>>,
    over: Rc<Cell<bool>>,
}

/// Lets the compute server execute what others send for the table.
pub async fn serve(fabric: SimFabric, session: Session, index: AnyIndex) -> Server {
    try_serve(fabric, session, index).await.expect("a session")
}

/// As [`serve`], for members that may be fenced meanwhile.
pub async fn try_serve(
    fabric: SimFabric,
    session: Session,
    index: AnyIndex,
) -> Result<Server, IndexError> {
    let endpoint: AnyEndpoint = session.endpoint().clone();
    let own = number_of(session.pool().member());
    fabric.expose(own, 0, &ListenConfig::default()).expect("exposed");
    let host: Arc<Host<AnyIndex>> = Arc::default();
    host.add(index.clone());
    let serving = session.pool().session(endpoint.clone()).await?;
    let (serve, over) = (Arc::clone(&host).serve(serving), Rc::new(Cell::new(false)));
    endpoint.spawn({
        let over = Rc::clone(&over);
        async move {
            // An error: it has been killed, or cut off.
            let _ = serve.await;
            over.set(true);
        }
    });
    Ok(Server { index, session, host, over })
}

impl Server {
    /// Takes no more requests, ends those that it has begun, and closes the table.
    async fn close(&self) -> Result<(), IndexError> {
        let endpoint = self.session.endpoint();
        let leaving = self.host.remove(owned(&self.index).meta()).expect("it was there");
        while !leaving.is_done() {
            endpoint.sleep(1_000).await;
        }
        endpoint.leave().await;
        while !self.over.get() {
            endpoint.sleep(1_000).await;
        }
        self.index.close(&self.session).await
    }

    /// Closes the table and leaves the pool.
    pub async fn leave(self) {
        self.close().await.expect("close");
        drop(self.index);
        settle(&self.session).await;
        self.session.leave().await.expect("leave");
    }

    /// As [`Self::leave`], for members that may be fenced meanwhile. Leaves it to others to free what it has retired.
    pub async fn try_leave(self) -> Result<(), IndexError> {
        self.close().await?;
        drop(self.index);
        Ok(self.session.leave().await?)
    }
}
