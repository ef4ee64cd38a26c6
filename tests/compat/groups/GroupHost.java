// Group members of Kafka's Java client, many in one JVM, a thread for each. Reads a JSON command per line; events
// and answers leave as JSON lines with the time of the machine's monotonic clock. It decides nothing.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

public class GroupHost {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUTPUT = System.out;
    private static final Map<String, Member> MEMBERS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        ExecutorService calls = Executors.newCachedThreadPool(work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            String name = command.path("member").asText();
            switch (command.get("op").asText()) {
                case "start":
                    Member member = new Member(name, command);
                    MEMBERS.put(name, member);
                    member.thread.start();
                    break;
                case "stop":
                case "vanish":
                    MEMBERS.get(name).end(command.get("op").asText());
                    break;
                case "hang":
                    MEMBERS.get(name).hangMs = command.get("ms").asLong();
                    break;
                default:
                    calls.submit(() -> answer(command));
            }
        }
        // The harness has gone: nobody waits for orderly farewells.
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void send(ObjectNode node) {
        try {
            OUTPUT.println(JSON.writeValueAsString(node));
            OUTPUT.flush();
        } catch (Exception impossible) {
            throw new IllegalStateException(impossible);
        }
    }

    private static ObjectNode event(String member, String event) {
        ObjectNode node = JSON.createObjectNode();
        node.put("member", member);
        node.put("event", event);
        node.put("at", System.nanoTime() / 1e9);
        return node;
    }

    private static Properties properties(JsonNode config) {
        Properties properties = new Properties();
        config.fields().forEachRemaining(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
        return properties;
    }

    private static void putPartitions(ObjectNode node, Collection<TopicPartition> partitions) {
        ArrayNode array = node.putArray("partitions");
        partitions.forEach(each -> array.addArray().add(each.topic()).add(each.partition()));
    }

    private static final class Member implements Runnable, ConsumerRebalanceListener {
        final String name;
        final Thread thread;
        volatile long hangMs = 0;
        private final JsonNode command;
        private final AtomicReference<String> ending = new AtomicReference<>();
        private final Map<TopicPartition, OffsetAndMetadata> processed = new HashMap<>();
        private KafkaConsumer<String, String> consumer;

        Member(String name, JsonNode command) {
            this.name = name;
            this.command = command;
            this.thread = new Thread(this, name);
            this.thread.setDaemon(true);
        }

        void end(String how) {
            ending.set(how);
        }

        @Override
        public void run() {
            try {
                consumer = new KafkaConsumer<>(
                    properties(command.get("config")), new StringDeserializer(), new StringDeserializer());
                subscribe();
                send(event(name, "ready"));
                while (ending.get() == null) {
                    step();
                }
                send(event(name, "leaving"));
                boolean isOrderly = ending.get().equals("stop");
                consumer.close(isOrderly
                    ? CloseOptions.timeout(Duration.ofSeconds(10))
                    : CloseOptions.timeout(Duration.ZERO)
                        .withGroupMembershipOperation(CloseOptions.GroupMembershipOperation.REMAIN_IN_GROUP));
                send(event(name, "closed"));
            } catch (Throwable failure) {
                ObjectNode node = event(name, "failed");
                node.put("error", failure.getClass().getSimpleName());
                node.put("message", String.valueOf(failure.getMessage()));
                send(node);
                if (consumer != null) {
                    consumer.close(CloseOptions.timeout(Duration.ZERO));
                }
            }
        }

        private void subscribe() {
            if (command.has("re2j")) {
                consumer.subscribe(new SubscriptionPattern(command.get("re2j").asText()), this);
            } else if (command.has("pattern")) {
                consumer.subscribe(Pattern.compile(command.get("pattern").asText()), this);
            } else {
                List<String> topics = new ArrayList<>();
                command.get("topics").forEach(topic -> topics.add(topic.asText()));
                consumer.subscribe(topics, this);
            }
        }

        private void step() throws Exception {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(50));
            if (hangMs > 0) {
                long pause = hangMs;
                hangMs = 0;
                Thread.sleep(pause);
            }
            if (records.isEmpty()) {
                return;
            }
            ObjectNode node = event(name, "records");
            node.put("generation", consumer.groupMetadata().generationId());
            ArrayNode rows = node.putArray("records");
            for (ConsumerRecord<String, String> record : records) {
                int split = record.value().lastIndexOf(' ');
                if (!record.value().substring(0, split).equals(record.topic())) {
                    throw new AssertionError(record.value() + " came out of " + record.topic());
                }
                rows.addArray().add(record.topic()).add(record.partition()).add(record.offset())
                    .add(Integer.parseInt(record.value().substring(split + 1)));
                processed.put(new TopicPartition(record.topic(), record.partition()),
                    new OffsetAndMetadata(record.offset() + 1, record.leaderEpoch(), ""));
            }
            send(node);
            commit();
        }

        private void commit() {
            if (processed.isEmpty()) {
                return;
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>(processed);
            try {
                consumer.commitSync(offsets);
                processed.clear();
            } catch (RuntimeException refused) {
                // In the middle of a rebalance it is tried again: at the latest when partitions are given up.
                if (!(refused instanceof RebalanceInProgressException)) {
                    processed.clear();
                }
                ObjectNode node = event(name, "commit_failed");
                node.put("error", refused.getClass().getSimpleName());
                send(node);
                return;
            }
            ObjectNode node = event(name, "committed");
            ArrayNode rows = node.putArray("offsets");
            offsets.forEach((where, offset) ->
                rows.addArray().add(where.topic()).add(where.partition()).add(offset.offset()));
            send(node);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            if (ending.get() == null || ending.get().equals("stop")) {
                commit();
            }
            ObjectNode node = event(name, "revoked");
            putPartitions(node, partitions);
            send(node);
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            ObjectNode node = event(name, "assigned");
            putPartitions(node, partitions);
            send(node);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            processed.clear();
            ObjectNode node = event(name, "lost");
            putPartitions(node, partitions);
            send(node);
        }
    }

    private static void answer(JsonNode command) {
        ObjectNode node = JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                properties(command.get("config")), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            switch (command.get("op").asText()) {
                case "commit": commit(consumer, command); break;
                case "committed": committed(consumer, command, node); break;
                case "position": position(consumer, command, node); break;
                default: throw new IllegalArgumentException("unknown op " + command.get("op"));
            }
        } catch (Throwable failure) {
            node.put("error", failure.getClass().getSimpleName());
            node.put("message", String.valueOf(failure.getMessage()));
        }
        node.put("answer", command.get("id").asInt());
        send(node);
    }

    private static TopicPartition partition(JsonNode node) {
        return new TopicPartition(node.get("topic").asText(), node.get("partition").asInt());
    }

    private static void commit(KafkaConsumer<byte[], byte[]> consumer, JsonNode command) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode each : command.get("offsets")) {
            Optional<Integer> epoch =
                each.hasNonNull("epoch") ? Optional.of(each.get("epoch").asInt()) : Optional.empty();
            offsets.put(partition(each),
                new OffsetAndMetadata(each.get("offset").asLong(), epoch, each.path("metadata").asText("")));
        }
        consumer.assign(offsets.keySet());
        if (!command.path("async").asBoolean()) {
            consumer.commitSync(offsets);
            return;
        }
        AtomicReference<Exception> outcome = new AtomicReference<>();
        boolean[] isDone = {false};
        consumer.commitAsync(offsets, (committed, failure) -> {
            outcome.set(failure);
            isDone[0] = true;
        });
        long deadline = System.nanoTime() + 10_000_000_000L;
        while (!isDone[0] && System.nanoTime() < deadline) {
            try {
                consumer.poll(Duration.ofMillis(50));
            } catch (WakeupException ignored) {
                break;
            }
        }
        if (outcome.get() != null) {
            throw outcome.get();
        }
        if (!isDone[0]) {
            throw new IllegalStateException("no answer to an asynchronous commit");
        }
    }

    private static void committed(KafkaConsumer<byte[], byte[]> consumer, JsonNode command, ObjectNode node) {
        TreeSet<TopicPartition> partitions = new TreeSet<>(
            (left, right) -> (left.toString()).compareTo(right.toString()));
        command.get("partitions").forEach(each -> partitions.add(partition(each)));
        ArrayNode rows = node.putArray("offsets");
        Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(partitions);
        for (TopicPartition each : partitions) {
            OffsetAndMetadata offset = found.get(each);
            ArrayNode row = rows.addArray().add(each.topic()).add(each.partition());
            if (offset == null) {
                row.addNull().addNull().addNull();
            } else {
                row.add(offset.offset()).add(offset.metadata()).add(offset.leaderEpoch().orElse(-1));
            }
        }
    }

    /** Where reading starts: the position after an assignment without a seek, as the reset policy gives it. */
    private static void position(KafkaConsumer<byte[], byte[]> consumer, JsonNode command, ObjectNode node) {
        TopicPartition wanted = partition(command);
        consumer.assign(List.of(wanted));
        node.put("position", consumer.position(wanted, Duration.ofSeconds(15)));
    }
}
