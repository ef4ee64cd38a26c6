// Transactional producers of Kafka's Java client, many in one JVM, a thread for each. The same commands as worker.py:
// a JSON command per line that names its producer, an answer with the command's id. It decides nothing.

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
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class TransactionHost {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final PrintStream OUTPUT = System.out;
    private static final Map<String, Actor> ACTORS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonNode command = JSON.readTree(line);
            String name = command.get("producer").asText();
            if (command.get("op").asText().equals("open")) {
                ACTORS.put(name, new Actor(command.get("config")));
            } else {
                Actor actor = ACTORS.get(name);
                actor.thread.submit(() -> actor.answer(command));
            }
        }
        // The test has ended: nobody waits for orderly farewells.
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

    private static final class Member {
        final KafkaConsumer<String, String> consumer;
        final ConsumerGroupMetadata metadata;

        Member(KafkaConsumer<String, String> consumer) {
            this.consumer = consumer;
            this.metadata = consumer.groupMetadata();
        }
    }

    private static final class Actor {
        final ExecutorService thread = Executors.newSingleThreadExecutor(work -> {
            Thread daemon = new Thread(work);
            daemon.setDaemon(true);
            return daemon;
        });
        private final Properties properties = new Properties();
        private final List<Future<RecordMetadata>> sent = new ArrayList<>();
        private final Map<String, Member> members = new HashMap<>();
        private KafkaProducer<String, String> producer;

        Actor(JsonNode config) {
            config.fields().forEachRemaining(entry -> properties.put(entry.getKey(), entry.getValue().asText()));
            properties.putIfAbsent("linger.ms", "2");
            properties.putIfAbsent("retry.backoff.ms", "20");
            properties.putIfAbsent("max.block.ms", "30000");
        }

        void answer(JsonNode command) {
            ObjectNode node = JSON.createObjectNode();
            try {
                if (producer == null) {
                    producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
                }
                run(command, node);
            } catch (Throwable failure) {
                Throwable cause = failure;
                while (cause instanceof ExecutionException && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                // A producer in its error state wraps what brought it there.
                if (cause.getClass().getSimpleName().equals("KafkaException") && cause.getCause() != null) {
                    cause = cause.getCause();
                }
                node.put("error", cause.getClass().getSimpleName());
                node.put("message", String.valueOf(cause.getMessage()));
            }
            node.put("answer", command.get("id").asInt());
            send(node);
        }

        private void run(JsonNode command, ObjectNode node) throws Exception {
            switch (command.get("op").asText()) {
                case "init": producer.initTransactions(); break;
                case "begin": sent.clear(); producer.beginTransaction(); break;
                case "send":
                    for (JsonNode record : command.get("records")) {
                        sent.add(producer.send(new ProducerRecord<>(
                            record.get(0).asText(), record.get(1).asInt(), null, record.get(2).asText())));
                    }
                    break;
                case "flush":
                    producer.flush();
                    for (Future<RecordMetadata> future : sent) {
                        future.get();
                    }
                    break;
                case "join": join(command, node); break;
                case "leave": members.get(command.get("consumer").asText()).consumer.close(); break;
                case "offsets": offsets(command); break;
                case "commit": producer.commitTransaction(); break;
                case "abort": producer.abortTransaction(); break;
                // Without time to say goodbye, an open transaction stays open.
                case "vanish":
                case "close": producer.close(Duration.ZERO); break;
                default: throw new IllegalArgumentException("unknown op " + command.get("op"));
            }
        }

        private void join(JsonNode command, ObjectNode node) {
            Properties config = new Properties();
            config.put("bootstrap.servers", properties.get("bootstrap.servers"));
            config.put("group.id", command.get("group").asText());
            config.put("enable.auto.commit", "false");
            config.put("auto.offset.reset", "earliest");
            command.get("config").fields()
                .forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
            KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
            consumer.subscribe(List.of(command.get("topic").asText()));
            ArrayNode values = node.putArray("values");
            while (values.isEmpty()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    values.add(record.value());
                }
            }
            members.put(command.get("consumer").asText(), new Member(consumer));
        }

        private void offsets(JsonNode command) {
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            for (JsonNode each : command.get("offsets")) {
                offsets.put(new TopicPartition(each.get(0).asText(), each.get(1).asInt()),
                    new OffsetAndMetadata(each.get(2).asLong()));
            }
            ConsumerGroupMetadata metadata = command.hasNonNull("consumer")
                ? members.get(command.get("consumer").asText()).metadata
                : new ConsumerGroupMetadata(command.get("group").asText());
            producer.sendOffsetsToTransaction(offsets, metadata);
        }
    }
}
