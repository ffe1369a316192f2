package thermocline.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledIfSystemProperty;
import thermocline.interop.cluster.Cluster;
import thermocline.interop.cluster.Gateway;
import thermocline.interop.cluster.Repair;
import thermocline.interop.cluster.Waiting;
import thermocline.interop.cluster.Wire;

/**
 * BookKeeper's auditor and replication worker beside a cluster with released ledgers: an outage of a gateway never makes them copy
 * a released ledger back to bookies.
 */
@EnabledIfSystemProperty(named = "bookies", matches = "thermocline")
class AuditorTest {
    private static final int BOOKIES = 4;
    private static final int ENTRIES = 30;
    /** Enough that each of two gateways has the shards of some. */
    private static final int LEDGERS = 8;
    private static final Duration REPAIRED = Duration.ofSeconds(60);

    @Test
    @Timeout(240)
    void noOutageOfAGatewayMakesTheAuditorCopyReleasedLedgers() throws Exception {
        try (Cluster cluster = new Cluster(BOOKIES); BookKeeper client = cluster.connect(Wire.V3)) {
            List<Gateway> gateways = cluster.gateways(2);
            List<LedgerHandle> released = new ArrayList<>();
            for (int i = 0; i < LEDGERS; i++) {
                long ledger = written(client).getId();
                cluster.offloader().release(ledger);
                released.add(client.openLedgerNoRecovery(ledger, DigestType.CRC32C, Payloads.PASSWORD));
            }
            LedgerHandle hot = written(client);
            for (Gateway gateway : gateways) {
                assertTrue(released.stream().anyMatch(ledger -> port(client, ledger) == gateway.port()),
                    () -> "no ledger at " + gateway.port());
            }
            try (Repair repair = new Repair(cluster, Duration.ofSeconds(10))) {
                Map<Long, Version> before = new HashMap<>();
                for (LedgerHandle ledger : released) {
                    before.put(ledger.getId(), repair.metadata(ledger.getId()).getVersion());
                }
                repair.awaitFullCheck();
                assertEquals(List.of(), repair.marked(), "with both gateways");

                // It hangs: connections stay and nothing is answered, until its shards are the other's.
                gateways.get(0).suspend();
                repair.awaitFullCheck();
                Waiting.until("no mark is left", REPAIRED, () -> repair.marked().isEmpty());
                gateways.get(0).resume();
                repair.awaitFullCheck();

                // It is gone.
                cluster.kill(gateways.get(1));
                repair.awaitFullCheck();
                Waiting.until("no mark is left", REPAIRED, () -> repair.marked().isEmpty());

                assertEquals(0, repair.copied(), "entries copied");
                for (LedgerHandle ledger : released) {
                    Versioned<LedgerMetadata> now = repair.metadata(ledger.getId());
                    assertEquals(Version.Occurred.CONCURRENTLY, now.getVersion().compare(before.get(ledger.getId())),
                        () -> "the metadata of " + ledger.getId() + " was written: " + now.getValue());
                    Payloads.check(ledger, 0, ENTRIES - 1);
                }

                // That this would have been seen: a bookie is lost, and what it had is copied.
                BookieId lost = hot.getLedgerMetadata().getAllEnsembles().get(0L).get(0);
                cluster.bookie(lost).kill();
                Waiting.until("the lost copies are made anew", REPAIRED, () ->
                    !repair.metadata(hot.getId()).getValue().getAllEnsembles().get(0L).contains(lost));
                assertTrue(repair.copied() > 0);
            }
        }
    }

    private static int port(BookKeeper client, LedgerHandle ledger) {
        BookieId member = ledger.getLedgerMetadata().getAllEnsembles().get(0L).get(0);
        return client.getBookieAddressResolver().resolve(member).getPort();
    }

    private static LedgerHandle written(BookKeeper client) throws Exception {
        LedgerHandle writer = client.createLedger(3, 2, 2, DigestType.CRC32C, Payloads.PASSWORD);
        Payloads.append(writer, ENTRIES);
        writer.close();
        return writer;
    }
}
