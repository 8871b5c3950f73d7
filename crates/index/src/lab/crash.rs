//! Crash cases: the actions during which a compute server dies, and the states from which they start.

/// Version of values that the table is filled with.
pub const INITIAL: u32 = 1;
/// Version of values that the action writes.
pub const WRITTEN: u32 = 2;

/// An action. Keys are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Gets a key.
    Get(u32),
    /// Inserts a key.
    Insert(u32),
    /// Updates a key.
    Update(u32),
    /// Inserts or updates a key.
    Upsert(u32),
    /// Removes a key.
    Remove(u32),
    /// A remove, and what its engine does in the background to give up the space.
    RemoveAndClose(u32),
    /// Key, expected version and new version; 0 stands for an absent key.
    Exchange(u32, u32, u32),
    /// Scans the table.
    Scan {
        /// Downwards.
        reverse: bool,
    },
    /// Fills the empty table with this many keys.
    BulkLoad(u32),
    /// Makes a second table.
    CreateTable,
    /// Drops the second table.
    DropTable,
    /// Joins the pool and opens the table.
    Join,
    /// Closes the table and leaves the pool.
    Leave,
    /// Ticks so many times.
    Ticks(u32),
    /// An object of a size that nobody has used yet.
    Alloc,
    /// Recovers the dead.
    Recover,
    /// Verifies the table.
    Verify,
    /// Work of the engine in the background, by its name.
    Background(&'static str),
}

impl Action {
    /// The key of the action, if it has one.
    pub fn key(self) -> Option<u32> {
        match self {
            Action::Get(key)
            | Action::Insert(key)
            | Action::Update(key)
            | Action::Upsert(key)
            | Action::Remove(key)
            | Action::RemoveAndClose(key)
            | Action::Exchange(key, ..) => Some(key),
            _ => None,
        }
    }
}

/// The order in which keys are added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The smallest first.
    Up,
    /// The largest first.
    Down,
    /// A fixed shuffle.
    Mixed,
}

/// The way to fill the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// This many keys: 10, 20 and so on.
    Keys(u32),
    /// This many keys, of which the compute server under test removes one itself.
    Without(u32, u32),
    /// Keys are added until the next one makes the change of that name ([`super::Lab::is_change`]).
    Grow(&'static str, Order),
    /// This many keys; they are removed until the next removal makes the change.
    Shrink(u32, &'static str, Order),
    /// This many keys, which a survivor caches if the state is watched. They are removed from the largest on until that makes
    /// the first change, and what that has freed may be used again. Then they are added upwards until the next one makes the
    /// second.
    Regrow(u32, &'static str, &'static str),
}

/// The step of the compute server under test, in terms of the script's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashStep {
    /// A fixed action.
    Do(Action),
    /// The action that makes the change.
    Found,
    /// A get of the key that the script has found, or of the existing one before it.
    Get,
    /// An insert beside that key.
    InsertBeside,
    /// A remove of the key before it.
    RemoveBefore,
    /// An update of the key for which that takes the most operations, the first one of them: it meets what the dead have left
    /// of a pair.
    LongestUpdate,
}

/// The set-up between filling and the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// None.
    Nothing,
    /// A third compute server begins the action that the script has found, leaves the split
    /// unfinished, and dies; the survivor recovers it.
    Unfinished,
    /// A third compute server begins the action that the script has found, and dies in a WRITE: the
    /// one this many before the last. Nobody recovers it.
    Died(usize),
    /// As `Died`, in the last WRITE of this action.
    DiedIn(Action),
    /// As `Died`, before that WRITE: all that the action posted earlier has landed. WRITEs of one word count here.
    DiedBefore(usize),
    /// A third compute server lives. It changes keys beside the action, and is the one whose death each point adds to
    /// that of the compute server under test.
    Beside,
}

/// A state, and the step from it.
#[derive(Clone, Copy, Debug)]
pub struct CrashState {
    /// The way to the state.
    pub script: Script,
    /// The step.
    pub step: CrashStep,
    /// The set-up before it.
    pub setup: Setup,
    /// Settings by which the compute server that acts opens the table, as in `unlink_batch=64`; none if empty.
    pub settings: &'static str,
    /// Settings by which the survivor and the third compute server open it.
    pub others_settings: [&'static str; 2],
    /// The compute server that acts fills the table, so that its blocks hold the nodes.
    pub by_actor: bool,
    /// The compute server has no block yet, and does not know the table's root.
    pub is_cold: bool,
    /// The compute server's blocks are full.
    pub is_exhausted: bool,
    /// There is a second table.
    pub has_other: bool,
    /// One survivor has cached the table before the action, apart from the others.
    pub is_watched: bool,
    /// The survivors read and change every key of the table, and not those around the action's alone.
    pub touches_all: bool,
    /// Before the survivors change the action's key, one of them reads it, another one changes every other key and reads it,
    /// and the first one reads it again.
    pub changes_others_first: bool,
    /// The action's last operation is lost, so that it settles what it has posted. Deaths from there on are tried.
    pub loses_last: bool,
    /// Only variants that name the case run it.
    pub is_of_variants: bool,
    /// A client waits until it may ask whether a lock's owner is dead, so that the case has hundreds of points. The
    /// default run leaves it out.
    pub is_patient: bool,
}

impl CrashState {
    /// A state without a set-up.
    pub const fn new(script: Script, step: CrashStep) -> CrashState {
        CrashState {
            script,
            step,
            setup: Setup::Nothing,
            settings: "",
            others_settings: [""; 2],
            by_actor: false,
            is_cold: false,
            is_exhausted: false,
            has_other: false,
            is_watched: false,
            touches_all: false,
            changes_others_first: false,
            loses_last: false,
            is_of_variants: false,
            is_patient: false,
        }
    }

    /// The compute server that acts fills the table.
    pub const fn by_actor(self) -> CrashState {
        CrashState { by_actor: true, ..self }
    }

    /// The compute server that acts is cold.
    pub const fn cold(self) -> CrashState {
        CrashState { is_cold: true, ..self }
    }

    /// The blocks of the compute server that acts are full.
    pub const fn exhausted(self) -> CrashState {
        CrashState { is_exhausted: true, ..self }
    }

    /// One survivor has a cache of its own, and the action's key is changed last.
    pub const fn approached(self) -> CrashState {
        CrashState { is_watched: true, touches_all: true, changes_others_first: true, ..self }
    }

    /// The last operation of the action is lost.
    pub const fn losing_last(self) -> CrashState {
        CrashState { loses_last: true, ..self }
    }

    /// The survivor, the compute server that acts and the third one open the table by these settings.
    pub const fn opened(self, [survivor, settings, third]: [&'static str; 3]) -> CrashState {
        CrashState { settings, others_settings: [survivor, third], ..self }
    }

    /// A third compute server lives and changes keys beside the action.
    pub const fn beside(self) -> CrashState {
        CrashState { setup: Setup::Beside, ..self }
    }

    /// The case has hundreds of points.
    pub const fn patient(self) -> CrashState {
        CrashState { is_patient: true, ..self }
    }

    /// Only variants that name the case run it.
    pub const fn of_variants(self) -> CrashState {
        CrashState { is_of_variants: true, ..self }
    }

    /// The step after a split was left unfinished.
    pub const fn unfinished(self, step: CrashStep) -> CrashState {
        CrashState { setup: Setup::Unfinished, step, ..self }
    }

    /// A recovery after a death in the WRITE that is this many before the last.
    pub const fn recovered(self, from_last: usize) -> CrashState {
        met(self, from_last, CrashStep::Do(Action::Recover))
    }
}

/// So many keys, then an action.
pub const fn keys(count: u32, action: Action) -> CrashState {
    CrashState::new(Script::Keys(count), CrashStep::Do(action))
}

/// The insert that makes the change.
pub const fn grow(change: &'static str, order: Order) -> CrashState {
    CrashState::new(Script::Grow(change, order), CrashStep::Found)
}

/// The remove that makes the change, in a table of so many keys at first.
pub const fn shrink(keys: u32, change: &'static str, order: Order) -> CrashState {
    CrashState::new(Script::Shrink(keys, change, order), CrashStep::Found)
}

/// A third compute server died in the state's action, in the WRITE that is this many before the last, and nobody recovers
/// it: the step meets what it left.
pub const fn met(state: CrashState, from_last: usize, step: CrashStep) -> CrashState {
    CrashState { setup: Setup::Died(from_last), step, ..state }
}

/// As [`met`], after a death before that WRITE. The survivors meet each key.
pub const fn met_before(state: CrashState, from_last: usize, step: CrashStep) -> CrashState {
    let setup = Setup::DiedBefore(from_last);
    CrashState { setup, step, touches_all: true, ..state }
}

/// As [`met`], after a death in the last WRITE of the action `before`, among 12 keys.
pub const fn died_in(before: Action, action: Action) -> CrashState {
    CrashState { setup: Setup::DiedIn(before), ..keys(12, action) }
}

/// The cases of removes that take leaves, and nodes above them, out of a tree of any kind. The actor makes the change
/// `gone` first, so that it has retired something, before it leaves or ticks.
pub fn merges(gone: &'static str) -> Vec<(&'static str, CrashState)> {
    let merge = shrink(14, "leaf-merge", Order::Up);
    let then = |action| CrashState::new(Script::Shrink(14, gone, Order::Up), CrashStep::Do(action));
    vec![
        ("remove-merge-right", merge),
        ("remove-merge-left", shrink(14, "leaf-merge", Order::Down)),
        ("remove-merge-own", merge.by_actor()),
        ("remove-merge-cascade", shrink(30, "inner-merge", Order::Up)),
        ("leave-own", then(Action::Leave).by_actor()),
        ("tick", then(Action::Ticks(6))),
        ("tick-own", then(Action::Ticks(6)).by_actor()),
    ]
}

/// The cases of inserts that add nodes to a radix tree, or replace them by larger ones.
pub fn node_inserts() -> Vec<(&'static str, CrashState)> {
    let node = grow("node-added", Order::Up);
    let larger = grow("node-grows", Order::Up);
    vec![
        ("insert-beside", grow("leaf-added", Order::Up)),
        ("insert-node", node),
        ("insert-node-down", grow("node-added", Order::Down)),
        ("insert-node-cold", node.cold()),
        ("insert-node-exhausted", node.exhausted()),
        ("insert-larger-node", larger),
        ("insert-larger-node-own", larger.by_actor()),
        ("recover-node", node.recovered(0)),
        ("recover-larger-node", larger.recovered(0)),
    ]
}
