# A model of tables that a lane reads again while grants of its source are lost, to read and to run; nothing of the
# product needs it. `docs/decisions/rereads.md` has the rules and what the model showed.
#
# It needs python3 and no packages: `python3 reread_hidden_sim.py SEEDS [NAMES [FIRST]]`. NAMES: `none` for all rules,
# `all` for all rules and then each mutant, or names of mutants; those that are joined by `+` hold at once. The model
# runs the seeds FIRST (0) to FIRST + SEEDS - 1 with each of them.
#
# A world has a server, its binlog, and one lane. The server loses grants of tables and gets them back; it changes rows
# with and without row events, truncates and drops tables, and drops some that it has a record of without a withdrawal.
# The lane is killed, and its reads fail. Then the world becomes quiet, and all grants are back. A seed ends wrong as
# `lie` (a lane that owes nothing and is at the end differs from the server) or `stuck` (it owes something for ever).
#
# A position is the number of transactions before it. A claim is (table, key, value). The lane keeps the last table
# whose turn is over (`done`), the table that it reads, and entries; its list of tables, comparisons and chunks on their
# way are in memory alone. A chunk shows the tables at any place since the lane began to note its changes.
# Each table has the row of key 0 from its first row event to its end: a lane does not notice a hidden table of which it
# has no row (`docs/limits.md`).
# `left` are tables that were withdrawn after the last record of every table: nothing of them is there to be read.
# The model leaves out fail-overs, repairs that a person asks for, the feed's parts of a transaction, retirements, lists
# that are full, and rests between two readings.
import random, sys, time

TABLES, KEYS, VALUES = ('t0', 't1', 't2', 't3'), 5, 4
MUTANTS = {
    'asked_at_end': 'unlisted tables are asked for at the end of a reading of all tables, by the last list',
    'never_asked': 'unlisted tables are not asked for',
    'entries_cleared': 'a record of every table removes the entries',
    'unread_passes': 'a table that cannot be read in its turn gets no entry',
    'left_stays': 'a table that was withdrawn before a record of every table counts as gone',
    'absent_forgotten': 'the entry of a table that is proved absent ends, and its claims stand',
    'absent_waits': 'nothing asks for tables that are owed and not listed',
    'hidden_absent': 'a lost grant counts as a proof that a table is absent',
    'old_proof': 'a proof of absence ends an entry from above it',
    'older': 'the end of a reading removes an entry from above its first chunk',
    'compare_older': 'a later record lets a comparison go on, and its end removes the entry',
    'repair_ends': 'an entry ends with the repair of what differs, without another comparison',
    'compare_sweeps': 'a comparison that found nothing is followed by a sweep',
}
ALTERNATIVES = {'restart': 'a record of a table sends its reading back to the first chunk'}


class Server:
    def __init__(s, r):
        s.r, s.hidden, s.log, s.snaps = r, set(), [], [{}]

    def end(s):
        return len(s.log)

    def tables(s):
        return s.snaps[-1]

    def visible(s):
        return {t for t in s.tables() if t not in s.hidden}

    def write(s, calm=False):
        r, tabs, ev, c = s.r, {t: dict(rows) for t, rows in s.tables().items()}, [], s.r.random()
        t = r.choice(TABLES)

        def row(t, key, new):
            old = tabs[t].pop(key, None)
            if new is not None:
                tabs[t][key] = new
            if old != new:
                ev.append(('row', t, key, old, new))

        def unseen(t):
            for key in range(KEYS):
                if r.random() < .5:
                    new = r.choice((None, r.randrange(VALUES))) if key else r.randrange(VALUES)
                    tabs[t].pop(key, None)
                    tabs[t].update({} if new is None else {key: new})

        if t not in tabs:
            tabs[t] = {}
            row(t, 0, r.randrange(VALUES))
        elif calm or c < .62:
            for key in r.sample(range(KEYS), r.choice((1, 1, 2))):
                row(t, key, r.choice((None, r.randrange(VALUES))) if key else r.randrange(VALUES))
        elif c < .67:                    # TRUNCATE, and a first row
            tabs[t] = {}
            ev.append(('gone', t))
            row(t, 0, r.randrange(VALUES))
        elif c < .72:                    # DROP
            del tabs[t]
            ev.append(('gone', t))
        elif c < .76:                    # dropped without a withdrawal: only a record names it
            del tabs[t]
            ev.append(('re', t))
        elif c < .91:
            unseen(t)
            ev.append(('re', t))
        else:
            for other in sorted(tabs):
                unseen(other)
            ev.append(('re', None))
        s.log.append(ev)
        s.snaps.append(tabs)


class Lane:
    def __init__(x, w):
        x.w, x.pos, x.rows = w, 0, {}    # claim -> version
        x.scope, x.done, x.cur, x.entries = None, -1, None, {}
        x.load()

    def load(x):                         # another process takes the lane over
        x.list, x.asked, x.flight, x.notes, x.cmp, x.aside, x.left, x.whole = None, False, None, None, None, set(), set(), set()

    def fails(x):                        # a read failed: the lane lists the tables anew
        x.list = x.flight = None

    def owes(x):
        return x.scope is not None

    def wants(x, t):
        return x.scope == 'all' and TABLES.index(t) > x.done

    def has_claims(x, t):
        return any(claim[0] == t for claim in x.rows)

    def up(x, claim, lsn):
        if x.rows.get(claim, -1) <= lsn:
            x.rows[claim] = lsn

    def sweep(x, t, below):
        for claim in [claim for claim, lsn in x.rows.items() if claim[0] == t and lsn < below]:
            del x.rows[claim]

    def note(x, t, claim, lsn):
        if x.notes and x.notes['t'] == t:
            x.notes['claims'][claim] = lsn

    def feed(x):
        w, M = x.w, x.w.M
        if x.pos == w.v.end():
            return
        lsn = x.pos + 1
        for kind, t, *rest in w.v.log[x.pos]:
            if kind == 'row':
                key, old, new = rest
                for claim in ((t, key, old), (t, key, new)):
                    x.note(t, claim, lsn)
                x.rows.pop((t, key, old), None)
                if new is not None:
                    x.up((t, key, new), lsn)
            elif kind == 'gone':
                x.sweep(t, lsn + 1)
                x.note(t, None, lsn)
                x.left.add(t)
                if x.entries.get(t, lsn + 1) <= lsn:
                    del x.entries[t]
                if x.cur and x.cur['t'] == t:
                    x.cur = None
                if x.flight and x.flight['t'] == t:
                    x.flight = None
                if x.cmp and x.cmp['t'] == t:
                    x.cmp = None
                x.settle()
            elif t is not None:
                x.entries[t] = lsn
                x.scope = x.scope or 'rereads'
                x.aside.discard(t)
                x.left.discard(t)
                if x.cmp and x.cmp['t'] == t and 'compare_older' not in M:
                    x.cmp = x.flight = None
                if x.cur and x.cur['t'] == t and 'restart' in M:
                    x.cur = x.flight = x.notes = None
            else:                        # all readings begin anew
                x.scope, x.done, x.cur = 'all', -1, None
                x.flight = x.notes = x.cmp = None
                x.asked, x.aside = False, set()
                if 'left_stays' not in M:
                    x.left = set()
                if 'entries_cleared' in M:
                    x.entries = {}
        x.pos = lsn

    def settle(x):
        if x.scope == 'rereads' and not x.entries:
            x.scope = x.cur = None

    def refresh(x):
        if not x.scope:
            return
        if x.flight:
            return x.take()
        w, v, M = x.w, x.w.v, x.w.M
        if x.list is None:               # a list is of a moment
            x.list, x.asked, x.left = v.visible(), False, set()
            return
        left = [t for t in TABLES if t in x.list and x.wants(t)]
        if x.scope == 'all' and not x.asked and not ('asked_at_end' in M and left):
            return x.ask()
        if x.cur:
            return x.read(x.cur['t'], x.cur['again']) if x.cur['t'] in x.list else x.leave(x.cur['t'], x.cur['again'])
        waiting = [t for t in TABLES if t in x.entries and t in x.list and t not in x.aside and not x.wants(t)]
        if waiting:
            return x.read(waiting[0], True)
        if left:
            return x.read(left[0], False)
        if x.scope == 'all':
            x.scope, x.done = 'rereads', -1
            return x.settle()
        unlisted = [t for t in TABLES if t in x.entries and t not in x.list and t not in x.aside]
        if unlisted and 'absent_waits' not in M:
            t = unlisted[0]
            if t in v.hidden and 'hidden_absent' not in M or t not in v.hidden and t in v.tables():
                x.aside.add(t)
            else:
                x.flight = dict(kind='proof', t=t, low=v.end())
            return
        x.list, x.aside = None, set()    # after a wait

    def ask(x):                          # asks for the tables that may be hidden
        v = x.w.v
        asked = [t for t in TABLES if x.wants(t) or 'asked_at_end' in x.w.M]
        asked = [t for t in asked if t not in x.list and t not in x.entries and t not in x.left and x.has_claims(t)]
        if 'never_asked' in x.w.M or not asked:
            x.asked = True
            return
        x.flight = dict(kind='hidden', t=None, hidden=[t for t in asked if t in v.hidden or t in v.tables()])

    def leave(x, t, again):              # a table that cannot be read leaves its turn, and is owed
        x.cur = x.cmp = x.notes = None
        x.aside.add(t)
        if again:
            return
        x.done = TABLES.index(t)
        if 'unread_passes' not in x.w.M and t not in x.left:
            x.entries[t] = x.pos

    def read(x, t, again):
        v, r, cmp, M = x.w.v, x.w.r, x.cmp, x.w.M
        if t not in v.tables() or t in v.hidden:
            x.fails()
            return x.leave(t, again)
        if cmp and cmp['t'] != t:
            cmp = x.cmp = None
        if not x.notes or x.notes['t'] != t:
            x.notes = dict(t=t, claims={}, floor=x.pos)
            cmp = x.cmp = None
        if not x.cur and not cmp and t not in x.whole and r.random() < .6:
            cmp = x.cmp = dict(t=t, part=0, first=None, found=set(), again=again)
            x.notes = dict(t=t, claims={}, floor=x.pos)
        first = (cmp or x.cur or dict(first=None))['first']
        floor = max(x.notes['floor'], first or 0)
        if cmp and cmp.get('repair') is not None:
            floor = x.pos
        elif cmp and first is None and 'compare_older' not in M:
            floor = max(floor, x.entries.get(t, 0))
        if floor > v.end():
            return
        low = r.choice((r.randint(floor, v.end()), v.end()))
        rows, part = v.snaps[low].get(t, {}), (cmp or x.cur or dict(part=0))['part']
        keys = cmp['repair'] if cmp and cmp.get('repair') is not None else range(part * 3, part * 3 + 3)
        x.flight = dict(kind='chunk', t=t, low=low, again=again, keys=set(keys), claims={(t, k, rows[k]) for k in keys if k in rows})

    def take(x):
        f, M = x.flight, x.w.M
        if f['kind'] == 'hidden':        # the feed may have withdrawn some meanwhile
            for t in f['hidden']:
                if t not in x.left and x.has_claims(t):
                    x.entries[t] = max(x.pos, x.entries.get(t, 0))
            x.flight, x.asked = None, True
            return
        if x.pos < f['low']:
            return
        x.flight, t, low = None, f['t'], f['low']
        if f['kind'] == 'proof':
            if t in x.entries and (x.entries[t] <= low or 'old_proof' in M):
                if 'absent_forgotten' not in M:
                    x.sweep(t, low)
                del x.entries[t]
                x.settle()
            return
        if x.cmp:
            return x.compare(f)
        if not x.notes or x.notes['t'] != t:
            return
        for claim in f['claims']:
            if x.notes['claims'].get(claim, 0) <= low and x.notes['claims'].get(None, 0) <= low:
                x.up(claim, low)
        x.cur = x.cur or dict(t=t, part=0, first=low, again=f['again'])
        x.cur['part'] += 1
        if x.cur['part'] < 2:
            return
        x.sweep(t, x.cur['first'])
        x.w.count['later'] += x.entries.get(t, 0) > x.cur['first']
        x.ended(t, x.cur['first'], x.cur['again'], 'older')

    def ended(x, t, first, again, mutant):
        x.cur = x.notes = x.cmp = None
        x.whole.discard(t)
        if x.entries.get(t, 0) <= first or mutant in x.w.M:
            x.entries.pop(t, None)
        if not again:
            x.done = max(x.done, TABLES.index(t))
        x.settle()

    def compare(x, f):
        cmp, t, low = x.cmp, f['t'], f['low']
        changed = x.notes['claims']
        if cmp.get('repair') is not None:
            if any(lsn > low for lsn in changed.values()):
                return                   # a key changed meanwhile: it is read again
            for claim in [claim for claim in x.rows if claim[0] == t and claim[1] in f['keys']]:
                del x.rows[claim]
            for claim in f['claims']:
                x.up(claim, low)
            x.w.count['repaired'] += 1
            if 'repair_ends' in x.w.M:
                return x.ended(t, cmp['first'], cmp['again'], 'repair_ends')
            x.cmp, x.notes = dict(t=t, part=0, first=None, found=set(), again=cmp['again']), dict(t=t, claims={}, floor=x.pos)
            return
        cmp['first'] = low if cmp['first'] is None else cmp['first']
        cmp['found'] |= f['claims']
        cmp['part'] += 1
        if cmp['part'] < 2:
            return
        left_out = {claim for claim, lsn in changed.items() if lsn > cmp['first']}
        stored = {claim for claim in x.rows if claim[0] == t}
        differing = {claim[1] for claim in (cmp['found'] ^ stored) - left_out}
        if None in left_out:
            x.cmp = x.notes = None
        elif not differing:
            x.w.count['equal'] += 1
            if 'compare_sweeps' in x.w.M:
                x.sweep(t, cmp['first'])
            x.ended(t, cmp['first'], cmp['again'], 'compare_older')
        elif len(differing) <= 2:
            cmp['repair'] = differing
        else:
            x.cmp = x.notes = None
            x.whole.add(t)

    def is_right(x):
        return set(x.rows) == {(t, key, value) for t, rows in x.w.v.tables().items() for key, value in rows.items()}


class World:
    def __init__(w, seed, M):
        w.r, w.M, w.bad = random.Random(seed), M, None
        w.count = dict.fromkeys('hidden later equal repaired'.split(), 0)
        w.v = Server(w.r)
        w.x = Lane(w)

    def check(w):
        if not w.x.owes() and w.x.pos == w.v.end() and not w.x.is_right():
            w.bad = 'lie'
        return w.bad


def run(seed, M):
    w = World(seed, frozenset(M))
    r, v, x = w.r, w.v, w.x
    grants, kills = r.choice((.02, .05, .1)), r.choice((.005, .02, .06))
    for _ in range(r.randrange(150, 500)):
        c = r.random()
        if c < .14:
            v.write()
        elif c < .40:
            x.feed()
        elif c < .40 + grants:
            if v.hidden and r.random() < .6:
                v.hidden.discard(r.choice(sorted(v.hidden)))
            else:                        # of a table, or of the database
                v.hidden |= {r.choice(TABLES)} if r.random() < .8 else set(TABLES)
                w.count['hidden'] += 1
        elif c < .50 + kills:
            x.load() if c < .50 + kills / 2 else x.fails()
        else:
            x.refresh()
        if w.check():
            return w
    v.hidden = set()
    for i in range(600):
        if i < 20 and r.random() < .3:
            v.write(calm=True)
        x.feed()
        x.refresh()
        if w.check() or i > 30 and not x.owes() and x.pos == v.end():
            return w
    w.bad = 'stuck'
    return w


if __name__ == '__main__':
    N, names, first = int(sys.argv[1]), (sys.argv[2:] + ['none'])[0], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    for M in ['none', *MUTANTS, *ALTERNATIVES] if names == 'all' else names.split(','):
        out, total, began, M = {}, {}, time.process_time(), [x for x in M.split('+') if x != 'none']
        assert set(M) <= {*MUTANTS, *ALTERNATIVES}, M
        for seed in range(first, first + N):
            w = run(seed, M)
            out.setdefault(w.bad or 'ok', []).append(seed)
            for k, n in w.count.items():
                total[k] = total.get(k, 0) + n
        counts = {k: len(x) for k, x in sorted(out.items())}
        examples = {k: x[:3] for k, x in out.items() if k != 'ok'}
        print('+'.join(M) or 'all rules', counts, 'e.g.', examples, total, f'{time.process_time() - began:.0f} s', flush=True)
